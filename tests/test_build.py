"""The targets of BUILD have all modules, and name files and targets that exist.

A BUILD file is Python of a few functions, so it is run here with functions that write down what
they are called with. `bazel test` itself needs a Bazel.
"""

import pathlib

from fl_dpftrl import version

ROOT = pathlib.Path(__file__).parents[1]


def glob(patterns, exclude=()):
  left_out = set(exclude and glob(exclude))
  found = [str(p.relative_to(ROOT)) for each in patterns for p in ROOT.glob(each) if p.is_file()]
  assert found, patterns
  return [name for name in found if name not in left_out]


def targets():
  """Returns the arguments of each target by its name."""
  found = {}

  def rule(kind):
    def add(name, **given):
      assert name not in found
      found[name] = {'kind': kind, **given}

    return add

  names = {kind: rule(kind) for kind in ('py_library', 'py_binary', 'py_test')}
  names |= {'glob': glob, 'package': lambda **_: None, 'licenses': lambda _: None}
  exec((ROOT / 'BUILD').read_text(), names)
  return found


TARGETS = targets()


def test_what_targets_name_exists():
  for target in TARGETS.values():
    for name in (*target['srcs'], *target.get('data', ())):
      assert (ROOT / name).is_file(), name
    assert all(dep[1:] in TARGETS for dep in target.get('deps', ()))
    if target['kind'] != 'py_library':
      assert target['main'] in target['srcs']
      assert "if __name__ == '__main__':" in (ROOT / target['main']).read_text()


def test_every_module_is_in_the_library_of_its_package():
  for package in ('fl_dpftrl', 'tff_inprocess', 'experiments'):
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / package).rglob('*.py')}
    assert modules == set(TARGETS[package]['srcs'])


def test_every_file_has_the_version_of_the_package():
  for name, words in (('MODULE.bazel', 'version = "{}"'), ('CITATION.cff', 'version: {}\n')):
    assert words.format(version.__version__) in (ROOT / name).read_text()
  assert f'\n## {version.__version__}\n' in (ROOT / 'CHANGELOG.md').read_text()
