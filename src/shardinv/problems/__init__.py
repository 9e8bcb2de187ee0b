"""Ready-made problems: operators, images, denoisers, a solver and scores.

Everything here is undistributed and knows nothing of ranks; a script hands the pieces to
`shardinv.distribute`.
"""

from shardinv.problems.blur_downsampling import BlurDownsampling
from shardinv.problems.denoisers import GreyByColour, NoisePredictor, load_denoiser, weights_file
from shardinv.problems.kernels import shifted_gaussian
from shardinv.problems.multiframe import FrameOptics, MultiFrame
from shardinv.problems.multiview import MultiView, simulated_volume
from shardinv.problems.photograph import centre_square
from shardinv.problems.plug_and_play import (
    noise_schedule,
    normalised_adjoint,
    plug_and_play,
    step_size,
)
from shardinv.problems.scores import psnr, relative_error, ssim
from shardinv.problems.volumetric import inflate

__all__ = [
    "BlurDownsampling",
    "FrameOptics",
    "GreyByColour",
    "MultiFrame",
    "MultiView",
    "NoisePredictor",
    "centre_square",
    "inflate",
    "load_denoiser",
    "noise_schedule",
    "normalised_adjoint",
    "plug_and_play",
    "psnr",
    "relative_error",
    "shifted_gaussian",
    "simulated_volume",
    "ssim",
    "step_size",
    "weights_file",
]
