/* The activations by number and name: what a gate or an `activate` op may ask for. */
#ifndef OX_VEC_ACTS_H
#define OX_VEC_ACTS_H

enum {
    OX_ACT_NONE = 0,
    OX_ACT_SILU,
    OX_ACT_GELU_TANH,
    OX_ACT_GELU_ERF,
    OX_ACT_GELU_QUICK,
    OX_ACT_RELU,
    OX_ACT_RELU2,
    OX_ACT_SIGMOID,
    OX_ACT_TANH,
    OX_ACT_SOFTPLUS,
    OX_ACT_EXP_EXCESS,
    OX_ACT_EXP,
    OX_ACT_SIGNED_ROOT,
    OX_ACT_COUNT
};

/* OX_ACT_NAMES[OX_ACT_SILU] is "silu" */
#define OX_ACT_NAMES { "none", "silu", "gelu_tanh", "gelu_erf", "gelu_quick", "relu", "relu2", "sigmoid", "tanh", "softplus", "exp_excess", \
    "exp", "signed_root" }

#endif
