"""Parser of the commands beside training, whose errors are one line."""

import argparse
import sys
from typing import NoReturn

from fl_dpftrl.support.text import messages


class Parser(argparse.ArgumentParser):
  """Argument parser that ends the process with status 2 and one line."""

  def __init__(self, prog: str, description: str | None):
    super().__init__(
      prog=prog,
      description=description,
      allow_abbrev=False,
      formatter_class=argparse.RawDescriptionHelpFormatter,
    )

  def error(self, message: str) -> NoReturn:
    print(messages.one_line(f'{self.prog}: {message}'), file=sys.stderr)
    sys.exit(2)
