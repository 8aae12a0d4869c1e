"""Opacus's own tests with the optimiser of examples/opacus_optimizer.py in place of theirs.

    python -m tests.rounds.opacus_suite [arguments of pytest]

Opacus ships its tests with its wheel. This program runs those of the engine, accumulated gradients,
batches in parts and seeds, first with Opacus's optimiser and then with ours under the identity
strategy, and prints which tests differ. It needs torchvision, and is run by hand.

Tests fail with ours that read the sum before its noise, which the aggregator shows to nobody, and
that compare to 1e-7: updates are whole multiples of 2⁻²⁴ of a clip norm that is to clip nothing.
"""

import importlib.util
import itertools
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import weakref

OPTIMIZER = pathlib.Path(__file__).parents[2] / 'examples' / 'opacus_optimizer.py'
TESTS = tuple(
  f'opacus/tests/{name}_test.py'
  for name in ('privacy_engine', 'gradient_accumulation', 'batch_memory_manager', 'randomness')
)


# Random examples of each test; the tests themselves set no number.
EXAMPLES = 5
_CHOICE = 'FL_DPFTRL_OPACUS_SUITE'


def pytest_configure(config) -> None:
  """As a plugin of pytest: puts ours in place, if it is asked for."""
  import hypothesis

  hypothesis.settings.register_profile('few', max_examples=EXAMPLES, derandomize=True)
  hypothesis.settings.load_profile('few')
  if os.environ[_CHOICE] == 'ours':
    _put_in_place()


def _put_in_place() -> None:
  import opacus.optimizers
  import opacus.privacy_engine
  import torch

  import fl_dpftrl as dpftrl
  from fl_dpftrl.centralized import sampling

  spec = importlib.util.spec_from_file_location('opacus_optimizer', OPTIMIZER)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  folders, numbers = tempfile.TemporaryDirectory(), itertools.count()

  class InPlace(module.CorrelatedOptimizer):
    """Made as Opacus's; its noise comes of PyTorch's seeds, which are drawn when it is needed."""

    def __init__(self, optimizer, *, generator=None, **arguments):
      opacus.optimizers.DPOptimizer.__init__(self, optimizer, generator=generator, **arguments)
      self.aggregator = self.round = None

    def clip_and_accumulate(self):
      if self.aggregator is None:
        seed = torch.randint(2**31, (), generator=self.generator).item()
        batch = int(self.expected_batch_size or 1)
        self.aggregator = dpftrl.PrivateAggregator(
          dpftrl.Identity(),
          template=[p.detach().cpu() for p in self.params],
          noise_multiplier=self.noise_multiplier,
          clip_norm=min(self.max_grad_norm, 256.0),  # Units are a part of it.
          report_goal=batch,
          folder=pathlib.Path(folders.name) / str(next(numbers)),
          sampling=sampling.CyclicPoisson(
            num_rounds=10**5, num_examples=10**5, batch_size=batch, num_parts=1
          ),
          noise_seed=seed,
        )
        self.max_grad_norm = self.aggregator.clip_norm
        weakref.finalize(
          self, self.aggregator.close
        )  # There are hundreds, and each has files open.
      if self.round is None:
        self.begin(range(4096))
      super().clip_and_accumulate()

  before = opacus.privacy_engine.get_optimizer_class

  def chosen(clipping, distributed, grad_sample_mode=None):
    found = before(clipping, distributed, grad_sample_mode)
    return InPlace if found is opacus.optimizers.DPOptimizer else found

  opacus.privacy_engine.get_optimizer_class = chosen
  # randomness_test imports the class by name.
  import opacus.tests.randomness_test as randomness

  randomness.DPOptimizer = InPlace


def outcomes(whose: str, *arguments: str) -> dict[str, str]:
  import opacus

  root = pathlib.Path(opacus.__file__).parents[1]
  command = [sys.executable, '-m', 'pytest', '-p', 'no:cacheprovider', '-rA', '--tb=line', '-q']
  command += ['-p', 'tests.rounds.opacus_suite', *arguments]
  done = subprocess.run(
    [*command, *(str(root / test) for test in TESTS)],
    capture_output=True,
    text=True,
    env=os.environ | {_CHOICE: whose},
  )
  return {
    name.split('/')[-1]: outcome
    for outcome, name in re.findall(
      r'^(PASSED|FAILED|ERROR|SKIPPED) (\S+)', done.stdout, re.MULTILINE
    )
  }


def main(arguments: list[str]) -> None:
  theirs, ours = (outcomes(whose, *arguments) for whose in ('theirs', 'ours'))
  for name in sorted(theirs):
    if theirs[name] != ours.get(name):
      print(f'{name}: {theirs[name]} with Opacus’s, {ours.get(name)} with ours')
  for who, found in (('Opacus’s', theirs), ('ours', ours)):
    print(f'{who}: {sum(each == "PASSED" for each in found.values())} of {len(found)} pass')


if __name__ == '__main__':
  main(sys.argv[1:])
