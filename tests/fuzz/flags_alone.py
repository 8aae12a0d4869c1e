"""The training program as far as its flags: a run of theirs does not begin."""

import sys
import types

from absl import app

from experiments.stackoverflow import train

if __name__ == '__main__':
  run = types.ModuleType('experiments.stackoverflow.run')
  run.run = lambda hparams, folder, **kwargs: None
  sys.modules['experiments.stackoverflow.run'] = run
  sys.modules['experiments.stackoverflow'].run = run
  app.run(train.main, flags_parser=train._parse)  # pylint: disable=protected-access
