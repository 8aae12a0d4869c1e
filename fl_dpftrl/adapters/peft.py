"""A person's update of a PEFT model, and rounds that train the model.

    for t in trained_rounds(model, aggregator, people_of, batches_of, cohort=20, server=Adam):
      print(f'round {t} of {aggregator.max_rounds}')

Only the model's parameters that require gradients learn. The guarantee is for people, each of whom
adds one update to a round, of all their text.
"""

import io
from collections.abc import Callable, Iterable, Iterator, Mapping
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

Batches = Iterable[Mapping[str, Any]]


def learning(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
  """Returns the parameters that require gradients, by name.

  ValueError for a model without any, for one that PEFT did not make, and for one whose layers keep
  statistics of the text that they see, which would be released without noise.
  """
  if not isinstance(model, peft.PeftModel):
    raise ValueError(f'model must be a PeftModel, as get_peft_model makes it, got a {type(model)}')
  if any(getattr(module, 'track_running_stats', False) for module in model.modules()):
    raise ValueError('model has running statistics, as of batch normalisation: use another')
  parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
  if not parameters:
    raise ValueError('model has no parameter that requires gradients')
  return parameters


def template(model: torch.nn.Module) -> dict[str, np.ndarray]:
  """Returns the template of a `PrivateAggregator` for a model: float32, whatever the model has."""
  return {name: np.zeros(tuple(p.shape), np.float32) for name, p in learning(model).items()}


class _Gradients(torch.nn.Module):
  """Adds up gradients within its call, where layers that are computed again have its parameters."""

  def __init__(self, model: torch.nn.Module):
    super().__init__()
    self.model = model

  def forward(self, batch: Mapping[str, Any], num_batches: int) -> None:
    (self.model(**batch).loss / num_batches).backward()


def update_of(
  model: torch.nn.Module,
  batches: Batches,
  *,
  learning_rate: float = 1.0,
  local_epochs: int = 1,
  accumulation: int = 1,
  clip_norms: Mapping[str, float] | None = None,
) -> dict[str, torch.Tensor]:
  """Returns how far a person's text moves the parameters that learn, float32; the model stays.

  The steps are gradient descent in float32; a model in bfloat16 computes with rounded copies.
  ValueError for an argument out of range, and clip norms of other parameters.

  Args:
    model: a PEFT model, whose call gives a loss.
    batches: arguments of that call, such as input_ids and labels; none for a person without text.
    accumulation: batches of a step, whose gradients are averaged.
    clip_norms: L2 bound on the update of each parameter, together √Σ c²; None where only the
      aggregator clips.
  """
  rate = checks.positive(learning_rate=learning_rate)
  size, passes = checks.whole(accumulation=accumulation), checks.whole(local_epochs=local_epochs)
  parameters, batches = learning(model), list(batches)
  if clip_norms is not None and clip_norms.keys() != parameters.keys():
    raise ValueError(f'clip_norms must have a number for each of {", ".join(parameters)}')
  values = {n: torch.nn.Parameter(p.detach().float().clone()) for n, p in parameters.items()}
  descent = torch.optim.SGD(values.values(), lr=rate)
  for step in [batches[i : i + size] for i in range(0, len(batches), size)] * passes:
    descent.zero_grad()
    for batch in step:
      rounded = {f'model.{n}': value.to(parameters[n].dtype) for n, value in values.items()}
      torch.func.functional_call(_Gradients(model), rounded, (batch, len(step)))
    descent.step()
  update = {name: (value - parameters[name]).detach() for name, value in values.items()}
  for name, bound in (clip_norms or {}).items():
    checks.positive(**{f'clip_norms[{name}]': bound})
    update[name] *= min(1.0, bound / max(float(update[name].norm()), 1e-30))
  return update


def trained_rounds(
  model: torch.nn.Module,
  aggregator: private_aggregator.PrivateAggregator,
  people_of: Callable[[int], id_columns.Ids],
  batches_of: Callable[[Any], Batches],
  *,
  cohort: int,
  server: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer],
  **local: Any,
) -> Iterator[int]:
  """Trains a round at each step, to the last one; yields its number. A run that stopped goes on.

  The server's parameters are float32; the model gets them in its own type. They are stored after
  each round, with the state of the server's optimiser, in model.pt of the aggregator's folder.

  Args:
    model: a PEFT model, which first gets the parameters that are stored, if any.
    aggregator: its template is that of `template`.
    people_of: round → candidates, of whom the first that may take part are recorded before it.
    batches_of: person's id → batches, as `update_of` takes them.
    cohort: most people of a round.
    server: makes the optimiser, which takes minus the mean for a gradient.
    local: further arguments of `update_of`.

  Raises:
    ValueError: for a state of other parameters, and LostStateError for rounds without one.
  """
  path, parameters = aggregator.folder / 'model.pt', learning(model)
  if path.exists():
    stored, state = torch.load(path, map_location='cpu', weights_only=True)
  else:
    aggregator.require_new()
    stored, state = parameters, None
  if {n: p.shape for n, p in stored.items()} != {n: p.shape for n, p in parameters.items()}:
    raise ValueError(f'model has other parameters that require gradients than {path}')
  values = {
    name: torch.nn.Parameter(p.detach().to(parameters[name].device, torch.float32, copy=True))
    for name, p in stored.items()
  }
  optimizer = server(list(values.values()))
  if state:
    optimizer.load_state_dict(state)

  def store() -> None:
    content = io.BytesIO()
    torch.save([values, optimizer.state_dict()], content)
    durable.write_durably(path, content.getbuffer(), private=True)
    with torch.no_grad():
      for name, parameter in parameters.items():
        parameter.copy_(values[name])  # In the model's own type.

  store()
  while (t := aggregator.next_round) < aggregator.max_rounds:
    people = aggregator.admissible(people_of(t), at_most=cohort).tolist()
    with aggregator.round(people) as round_:
      for person in people:
        round_.add(update_of(model, batches_of(person), **local), device_id=person)
    for name, value in values.items():
      value.grad = -torch.as_tensor(round_.mean[name]).to(value)
    optimizer.step()
    store()
    yield t
