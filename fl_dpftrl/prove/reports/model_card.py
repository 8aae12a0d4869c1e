"""A model card with the guarantee of a registry entry, as hubs of models show it."""

import hashlib
import os
import pathlib

from fl_dpftrl.prove.replaying import assumption_sentences
from fl_dpftrl.prove.reports import page
from fl_dpftrl.support.files import durable, json_files

_MARK = '<!-- fl_dpftrl '


def check_path(path: str | os.PathLike[str]) -> None:
  """Raises ValueError for a file that is there, unless it is a card and nobody has changed it."""
  if os.path.exists(path):
    text = pathlib.Path(path).read_text('utf-8', errors='replace')
    if text != _marked(text.rpartition(_MARK)[0]):
      raise ValueError(
        f'model_card={path} has text that is not of this program; name another file, and copy it'
      )


def write_card(
  path: str | os.PathLike[str], entry: json_files.Object, entry_name: str | None = None
) -> None:
  """Writes a head in YAML, and sentences; ValueError for a file with text of somebody else.

  Args:
    path: Markdown file.
    entry: of a registry, as `write_entry` returns it.
    entry_name: name of the file of the entry, beside the card.
  """
  check_path(path)
  said = entry['deployment'] | entry['model'] | entry['data'] | entry['practice']
  text = page.render(
    'model_card.md',
    entry=entry,
    entry_name=entry_name,
    said={name: text for name, text in said.items() if name != 'said_by'},
    groups=assumption_sentences.GROUPS,
  )
  durable.write_durably(path, _marked(f'{text}\n').encode())


def _marked(text: str) -> str:
  return f'{text}{_MARK}{hashlib.sha256(text.encode()).hexdigest()} -->\n'
