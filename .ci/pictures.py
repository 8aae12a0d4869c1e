"""Makes the pictures of README and of the site's first page: python .ci/pictures.py RUN

RUN is the folder of a run with a guarantee, such as runs/docstrings of `make train`. The
picture of its report needs Chromium on the PATH.
"""

import pathlib
import shutil
import subprocess
import sys

PICTURES = pathlib.Path(__file__).parents[1] / 'docs' / 'pictures'
_WIDTH, _HEIGHT = 900, 642


def main(run: pathlib.Path) -> None:
  """Copies the plot of a run, and takes a picture of the first lines of its report."""
  shutil.copyfile(run / 'accuracy.png', PICTURES / 'accuracy.png')
  subprocess.run(
    [
      'chromium',
      '--headless=new',
      '--no-sandbox',
      '--hide-scrollbars',
      f'--window-size={_WIDTH},{_HEIGHT}',
      f'--screenshot={PICTURES / "report.png"}',
      (run / 'privacy.html').resolve().as_uri(),
    ],
    check=True,
    stderr=subprocess.DEVNULL,
  )


if __name__ == '__main__':
  main(pathlib.Path(sys.argv[1]))
