/* The environment of a share of work: floating point.
 *
 * Rounding, flushing and traps are part of a result, and a program may have set its own (a training
 * library flushes subnormals): every share runs in the default one, whichever thread takes it.
 *
 *     fenv_t was = ox_fenv_enter();
 *     ...
 *     ox_fenv_leave(&was);
 */
#ifndef OX_ENVIRONMENT_H
#define OX_ENVIRONMENT_H

#include <fenv.h>

static inline fenv_t ox_fenv_enter(void) {
    fenv_t was;
    fegetenv(&was);
    fesetenv(FE_DFL_ENV);
    return was;
}

static inline void ox_fenv_leave(const fenv_t *was) { fesetenv(was); }

#endif
