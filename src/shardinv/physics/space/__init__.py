"""Operators by space: each rank applies them to its own box of the image, with a halo.

``local`` says what an operator needs for that, ``registry`` which operators have it and how users
add theirs, ``known`` the forms of DeepInverse's operators, ``verify`` the comparison of a form with
its operator. ``axes``, ``padding``, ``filtering`` are the arithmetic; ``convolution``,
``pointwise``, ``varying``, ``transposed`` the forms. ``exchange_plan`` and ``program`` run them on
sharded images; ``linear`` and ``stack`` are the blocks that solvers see, ``block`` what they share,
``build`` makes them.
"""

from shardinv.physics.space import known as _known  # registers DeepInverse's operators
from shardinv.physics.space.axes import Axis, Padding
from shardinv.physics.space.block import LocalBlock
from shardinv.physics.space.build import local_physics
from shardinv.physics.space.convolution import LocalConvolution
from shardinv.physics.space.linear import DistributedLocalPhysics
from shardinv.physics.space.local import Chain, LocalOperator
from shardinv.physics.space.pointwise import (
    LocalMixture,
    LocalMultiplication,
    PointwiseOperator,
)
from shardinv.physics.space.registry import (
    LocalForm,
    NotLocalError,
    local_form,
    make_local_form,
    register_local_form,
)
from shardinv.physics.space.stack import DistributedLocalStack
from shardinv.physics.space.transposed import LocalSpreading
from shardinv.physics.space.varying import LocalVaryingBlur
from shardinv.physics.space.verify import LocalFormError, verify_local_form

del _known

__all__ = [
    "Axis",
    "Chain",
    "DistributedLocalPhysics",
    "DistributedLocalStack",
    "LocalBlock",
    "LocalConvolution",
    "LocalForm",
    "LocalFormError",
    "LocalMixture",
    "LocalMultiplication",
    "LocalOperator",
    "LocalSpreading",
    "LocalVaryingBlur",
    "NotLocalError",
    "Padding",
    "PointwiseOperator",
    "local_form",
    "local_physics",
    "make_local_form",
    "register_local_form",
    "verify_local_form",
]
