"""``python -m shardinv``: the command line, e.g. under ``torchrun -m shardinv demo``."""

from shardinv.cli.main import app

if __name__ == "__main__":
    app(prog_name="shardinv")
