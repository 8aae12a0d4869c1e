"""Which predictions count, and the accuracies of the papers.

The headline `accuracy` is the papers' metric of record: next-word accuracy over
the targets that are words of the vocabulary, so neither padding nor
out-of-vocabulary words nor ends of sentences are counted. It is also given
under its long name, `accuracy_no_oov_or_eos`, beside its siblings.
"""

import numpy as np

from experiments.stackoverflow.datasets import vocabulary as vocabulary_lib


def counted(targets: np.ndarray, vocabulary: vocabulary_lib.Vocabulary) -> np.ndarray:
  """Returns the mask of targets that count in the headline accuracy."""
  return (targets != vocabulary.pad) & (targets <= len(vocabulary.words))


def masks(targets: np.ndarray, vocabulary: vocabulary_lib.Vocabulary) -> dict[str, np.ndarray]:
  """Returns the mask of targets that count in each accuracy, by its name."""
  words = counted(targets, vocabulary)
  with_oov = targets != vocabulary.pad
  return {
    'accuracy': words,
    'accuracy_no_oov_or_eos': words,
    'accuracy_no_oov': with_oov & (targets != vocabulary.oov),
    'accuracy_with_oov': with_oov,
  }
