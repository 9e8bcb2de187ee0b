"""``shardinv demo``: multi-frame super-resolution of a photograph over several processes.

``settings`` are the options, ``start`` checks them and starts the workers, ``run`` is what every
rank does, ``progress`` what it shows meanwhile, ``figures`` and ``report`` what it leaves behind.
"""

from shardinv.cli.demo.run import run_demo
from shardinv.cli.demo.settings import DemoSettings
from shardinv.cli.demo.start import start_demo

__all__ = ["DemoSettings", "run_demo", "start_demo"]
