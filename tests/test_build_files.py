"""BUILD files describe every package, its imports and who may use it."""

import ast
import dataclasses
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PACKAGES = ('fl_dpftrl', 'experiments')
RULES = ('py_library', 'py_binary')
TENSORFLOW = {'tensorflow', 'tensorflow_federated', 'tensorflow_privacy'}


@dataclasses.dataclass
class Target:
  label: str
  folder: str
  sources: list[str]
  deps: list[str]
  visibility: list[str]


def evaluate(node: ast.expr, folder: pathlib.Path):
  """The value of an attribute: literals, glob(), requirement(), and sums."""
  if isinstance(node, ast.Call):
    arguments = [ast.literal_eval(a) for a in node.args]
    if node.func.id == 'glob':
      return sorted(str(p.relative_to(folder)) for g in arguments[0] for p in folder.glob(g))
    if node.func.id == 'requirement':
      return f'@pip//{arguments[0]}'
    raise ValueError(f'unknown function {node.func.id}')
  if isinstance(node, ast.List):
    return [evaluate(item, folder) for item in node.elts]
  if isinstance(node, ast.BinOp):
    return evaluate(node.left, folder) + evaluate(node.right, folder)
  return ast.literal_eval(node)


def read_targets() -> dict[str, Target]:
  targets = {}
  for path in [ROOT / 'BUILD', *(p for d in PACKAGES for p in (ROOT / d).rglob('BUILD'))]:
    folder = '' if path.parent == ROOT else str(path.parent.relative_to(ROOT))
    for statement in ast.parse(path.read_text()).body:
      call = getattr(statement, 'value', None)
      if not isinstance(call, ast.Call) or call.func.id not in RULES:
        continue
      given = {k.arg: evaluate(k.value, path.parent) for k in call.keywords}
      label = f'//{folder}:{given["name"]}'
      targets[label] = Target(
        label=label,
        folder=folder,
        sources=[str((path.parent / s).relative_to(ROOT)) for s in given['srcs']],
        deps=[absolute(d, folder) for d in given.get('deps', [])],
        visibility=given['visibility'],
      )
  return targets


def absolute(label: str, folder: str) -> str:
  if label.startswith('@'):
    return label
  if label.startswith(':'):
    return f'//{folder}{label}'
  if ':' not in label:
    return f'{label}:{label.rsplit("/", 1)[-1]}'
  return label


TARGETS = read_targets()
OWNER = {source: t.label for t in TARGETS.values() for source in t.sources}


def python_files() -> list[str]:
  return sorted(str(p.relative_to(ROOT)) for d in PACKAGES for p in (ROOT / d).rglob('*.py'))


def module_file(module: str) -> str | None:
  path = ROOT / module.replace('.', '/')
  for candidate in (path.with_suffix('.py'), path / '__init__.py'):
    if candidate.exists():
      return str(candidate.relative_to(ROOT))
  return None


def imports(source: str) -> set[str]:
  """Labels of what a file imports, anywhere in it."""
  labels = set()
  for node in ast.walk(ast.parse((ROOT / source).read_text())):
    if isinstance(node, ast.Import):
      names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
      names = [f'{node.module}.{alias.name}' for alias in node.names]
      names = [n if module_file(n) else node.module for n in names]
    else:
      continue
    for name in names:
      top = name.split('.')[0]
      if top in PACKAGES:
        labels.add(OWNER[module_file(name)])
      elif top not in sys.stdlib_module_names:
        labels.add(f'@pip//{top}')
  return labels


def test_every_file_is_in_exactly_one_target():
  listed = [s for t in TARGETS.values() for s in t.sources]
  assert sorted(listed) == python_files()


@pytest.mark.parametrize('label', sorted(TARGETS))
def test_dependencies_are_the_real_imports(label):
  target = TARGETS[label]
  real = set().union(*(imports(s) for s in target.sources)) - {label}
  assert sorted(target.deps) == sorted(real)


@pytest.mark.parametrize('label', sorted(TARGETS))
def test_dependencies_are_visible(label):
  folder = TARGETS[label].folder
  for dep in TARGETS[label].deps:
    if dep.startswith('@'):
      continue
    assert (
      any(
        rule == '//visibility:public'
        or rule == f'//{folder}:__pkg__'
        or (
          rule.endswith(':__subpackages__')
          and f'{folder}/'.startswith(rule[2:].split(':')[0] + '/')
        )
        for rule in TARGETS[dep].visibility
      )
      or TARGETS[dep].folder == folder
    ), f'{label} may not see {dep}'


def test_no_target_depends_on_itself_through_others():
  done, path = set(), []

  def visit(label):
    assert label not in path, ' -> '.join([*path, label])
    if label in done or label.startswith('@'):
      return
    path.append(label)
    for dep in TARGETS[label].deps:
      visit(dep)
    path.pop()
    done.add(label)

  for label in TARGETS:
    visit(label)


def test_only_the_training_packages_reach_tensorflow():
  allowed = (
    '//fl_dpftrl/noise:stream',
    '//fl_dpftrl/aggregators',
    '//fl_dpftrl/learning',
    '//fl_dpftrl/runtime',
    '//experiments',
  )
  for label, target in TARGETS.items():
    if {f'@pip//{name}' for name in TENSORFLOW} & set(target.deps):
      assert label.startswith(allowed), label
