"""A person's update of a PEFT model, and a trainer of the model, round by round.

    trainer = PrivateTrainer(model, aggregator, batches_of, server=torch.optim.Adam)
    while aggregator.next_round < aggregator.max_rounds:
      trainer.round(people, cohort=20)

Only the model's parameters that require gradients learn. The guarantee is for people, each of whom
adds one update to a round, of all their text.
"""

import io
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from fl_dpftrl import adapters
from fl_dpftrl.logs import id_columns
from fl_dpftrl.run import private_aggregator
from fl_dpftrl.support import checks
from fl_dpftrl.support.files import durable

with adapters.peer('PEFT', 'peft'):
  import peft
  import torch

STATE_NAME = 'model.pt'
Tensors = dict[str, torch.Tensor]
Batches = Iterable[Mapping[str, Any]]


def learning(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
  """Returns the parameters that require gradients, by name.

  ValueError for a model without any, for one that PEFT did not make, and for one whose layers keep
  statistics of the text that they see, which would be released without noise.
  """
  if not isinstance(model, peft.PeftModel):
    raise ValueError(f'model must be a PeftModel, as get_peft_model makes it, got a {type(model)}')
  if any(getattr(module, 'track_running_stats', False) for module in model.modules()):
    raise ValueError(
      'model has a layer with running statistics, as batch normalisation: use another'
    )
  parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
  if not parameters:
    raise ValueError('model has no parameter that requires gradients')
  return parameters


def template(model: torch.nn.Module) -> dict[str, np.ndarray]:
  """Returns the template of a `PrivateAggregator` for a model: float32, whatever the model has."""
  return {name: np.zeros(tuple(p.shape), np.float32) for name, p in learning(model).items()}


def update_of(
  model: torch.nn.Module,
  batches: Batches,
  *,
  learning_rate: float = 1.0,
  local_epochs: int = 1,
  accumulation: int = 1,
  clip_norms: Mapping[str, float] | None = None,
) -> Tensors:
  """Returns how far a person's text moves the parameters that learn, float32; the model stays.

  The steps are gradient descent in float32, of which a model in bfloat16 gets rounded copies. One
  step is minus the gradient, times the learning rate.

  Args:
    model: a PEFT model, whose call gives a loss.
    batches: arguments of that call, such as input_ids and labels; none for a person without text.
    learning_rate: that of the steps.
    local_epochs: passes over the batches.
    accumulation: batches of a step, whose gradients are averaged.
    clip_norms: L2 bound on the update of each parameter, together √Σ c²; None where only the
      aggregator clips.

  Raises:
    ValueError: for an argument out of range, and clip norms of other parameters.
  """
  rate = checks.positive(learning_rate=learning_rate)
  size, passes = checks.whole(accumulation=accumulation), checks.whole(local_epochs=local_epochs)
  parameters, batches = learning(model), list(batches)
  if clip_norms is not None and clip_norms.keys() != parameters.keys():
    raise ValueError(f'clip_norms must have a number for each of {", ".join(parameters)}')
  stored = {name: p.detach().clone() for name, p in parameters.items()}
  values = {name: p.float() for name, p in stored.items()}
  steps = [batches[i : i + size] for i in range(0, len(batches), size)] * passes
  try:
    for step in steps:
      gradients = {name: torch.zeros_like(value) for name, value in values.items()}
      for batch in step:
        loss = model(**batch).loss
        parts = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        for name, part in zip(parameters, parts):
          if part is not None:
            gradients[name] += part.float() / len(step)
      values = {name: value - rate * gradients[name] for name, value in values.items()}
      _set(parameters, values)
  finally:
    _set(parameters, stored)
  update = {name: value - stored[name].float() for name, value in values.items()}
  for name, bound in (clip_norms or {}).items():
    checks.positive(**{f'clip_norms[{name}]': bound})
    update[name] = update[name] * min(1.0, bound / max(float(update[name].norm()), 1e-30))
  return update


class PrivateTrainer:
  """Trains a PEFT model by an aggregator's means, and goes on where its folder's run was.

  The server's parameters are float32; the model gets them in its own type. They are stored after
  each round, with the state of the server's optimiser, in model.pt of the aggregator's folder.
  """

  def __init__(
    self,
    model: torch.nn.Module,
    aggregator: private_aggregator.PrivateAggregator,
    batches_of: Callable[[Any], Batches],
    *,
    server: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer],
    **local: Any,
  ):
    """Takes the state that is stored, or stores the first one.

    Args:
      model: a PEFT model, which has the parameters of the last round.
      aggregator: its template is that of `template`.
      batches_of: person's id → batches, as `update_of` takes them.
      server: makes the optimiser, which takes minus the mean for a gradient.
      local: further arguments of `update_of`.

    Raises:
      LostStateError: for a run that has rounds, and no state.
    """
    self.model, self.aggregator = model, aggregator
    self._batches_of, self._local = batches_of, local
    self._parameters = learning(model)
    values = {name: p.detach().float().clone() for name, p in self._parameters.items()}
    self._values = {name: torch.nn.Parameter(value) for name, value in values.items()}
    self._server = server(list(self._values.values()))
    self._path = aggregator.folder / STATE_NAME
    if not self._path.exists():
      aggregator.require_new()
      self._store()
    values, state = torch.load(self._path, map_location='cpu', weights_only=True)
    _set(self._values, values)
    self._server.load_state_dict(state)
    _set(self._parameters, values)

  def round(self, candidates: id_columns.Ids, *, cohort: int) -> None:
    """Trains one round of the first candidates that may take part, who are recorded before it."""
    people = self.aggregator.admissible(candidates, at_most=cohort).tolist()
    with self.aggregator.round(people) as round_:
      for person in people:
        update = update_of(self.model, self._batches_of(person), **self._local)
        round_.add(update, device_id=person)
    for name, value in self._values.items():
      value.grad = -torch.as_tensor(round_.mean[name]).to(value)
    self._server.step()
    self._store()
    _set(self._parameters, self._values)

  def _store(self) -> None:
    content = io.BytesIO()
    values = {name: value.detach() for name, value in self._values.items()}
    torch.save([values, self._server.state_dict()], content)
    durable.write_durably(self._path, content.getbuffer(), private=True)


@torch.no_grad()
def _set(parameters: Mapping[str, torch.Tensor], values: Mapping[str, torch.Tensor]) -> None:
  for name, parameter in parameters.items():
    parameter.copy_(values[name])
