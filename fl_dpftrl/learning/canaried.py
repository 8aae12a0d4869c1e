"""A learning process whose measurements hold the scores of its canaries."""

from typing import Any

import tensorflow_federated as tff

from fl_dpftrl.aggregators import canaries as canaries_lib

MEASUREMENT = 'canaries'


class CanariedProcess:
  """A learning process with canaries, each round of which says their scores.

  Scores are measurements, so the training loop stores them with the round's result: what is
  interrupted after that has them still. `name(i)` is the flat name of score i.

  Args:
    process: does all else; its aggregator is a `CanaryFactory`.
    channel: of the aggregator.
  """

  def __init__(
    self, process: tff.learning.templates.LearningProcess, channel: canaries_lib.Channel
  ):
    self._process, self._channel = process, channel

  def initialize(self) -> Any:
    return self._process.initialize()

  def next(self, state: Any, data: Any) -> tff.learning.templates.LearningProcessOutput:
    row = int(state.aggregator.noise.row)
    output = self._process.next(state, data)
    scores = {str(i): float(score) for i, score in enumerate(self._channel.take(row))}
    return output._replace(metrics={**output.metrics, MEASUREMENT: scores})


def name(number: int) -> str:
  """Returns the flat name of a score among the measurements of a checkpoint."""
  return f'{MEASUREMENT}/{number}'
