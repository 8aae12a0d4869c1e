"""Steps of a round of `tff.training.loop`, at which tests look at a run, pause it or kill it."""

from collections.abc import Callable

from fl_dpftrl.run import guards
from fl_dpftrl.run.observers import observer
from fl_dpftrl.tff.training import checkpoints, loop

STEPS = ['cohort logged', 'computed', 'stored', 'published']


def watch(
  on_step: Callable[[str, int], None], set_attribute: Callable[..., None] = setattr
) -> None:
  """Calls a function after each step of a round, with its name and the round.

  Args:
    set_attribute: replaces a method of a class, such as `setattr` of pytest's monkeypatch.
  """
  reserve, computed = guards.Guard.reserve, loop.TrainingRun._computed
  save, released = checkpoints.CheckpointFolder.save, observer.Observers.released
  under_way: list[int] = []

  def reserved(guard, cohorts, **options):
    under_way[:] = [guard.num_rounds]
    result = reserve(guard, cohorts, **options)
    on_step('cohort logged', under_way[0])
    return result

  def compute(run, t, *arguments):
    output = computed(run, t, *arguments)
    on_step('computed', t)
    return output

  def saved(folder, checkpoint):
    result = save(folder, checkpoint)
    if under_way == [checkpoint.num_rounds - 1]:  # Others are of a recovery.
      on_step('stored', under_way[0])
    return result

  def published(watching, run, t, measurements):
    result = released(watching, run, t, measurements)
    if under_way == [t]:
      on_step('published', t)
    return result

  set_attribute(guards.Guard, 'reserve', reserved)
  set_attribute(loop.TrainingRun, '_computed', compute)
  set_attribute(checkpoints.CheckpointFolder, 'save', saved)
  set_attribute(observer.Observers, 'released', published)
