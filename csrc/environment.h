/* The environment of a share of work: floating point, and signals.
 *
 * Rounding, flushing and traps are part of a result, and a program may have set its own (a training
 * library flushes subnormals): every share runs in the default one, whichever thread takes it.
 *
 *     fenv_t was = ox_fenv_enter();
 *     ...
 *     ox_fenv_leave(&was);
 *
 * Signals are for the threads of the program, not for ours, but those that a thread causes itself: who blocks them is ended without a handler.
 *
 *     sigset_t all, was;
 *     ox_others_signals(&all);
 *     pthread_sigmask(SIG_SETMASK, &all, &was);    // around the start of a thread
 */
#ifndef OX_ENVIRONMENT_H
#define OX_ENVIRONMENT_H

#include <fenv.h>
#include <signal.h>

static inline fenv_t ox_fenv_enter(void) {
    fenv_t was;
    fegetenv(&was);
    fesetenv(FE_DFL_ENV);
    return was;
}

static inline void ox_fenv_leave(const fenv_t *was) { fesetenv(was); }

static inline void ox_others_signals(sigset_t *all) {
    sigfillset(all);
    sigdelset(all, SIGBUS);
    sigdelset(all, SIGFPE);
    sigdelset(all, SIGILL);
    sigdelset(all, SIGSEGV);
}

#endif
