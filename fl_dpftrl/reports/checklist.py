"""The text of a privacy report: coverage, assumptions and exclusions.

The items are those for reporting guarantees in Ponomareva et al. 2023, "How to
DP-fy ML", section 5.3, which McMahan, Xu, Zhang 2024 (BLT-DP-FTRL), appendix C,
answer for their production models.
"""

import importlib.metadata
import platform

import fl_dpftrl
from fl_dpftrl.centralized import drawn as drawn_lib
from fl_dpftrl.replaying import publication
from fl_dpftrl.replaying import statement as statement_lib
from fl_dpftrl.reports import page
from fl_dpftrl.reports import setting as setting_lib

_PACKAGES = ('numpy', 'dp-accounting', 'pyarrow', 'duckdb')


def adjacency_name(statement: statement_lib.Statement) -> str:
  """Returns the name of the adjacency in words."""
  return statement.adjacency.replace('_', '-')


def unit(statement: statement_lib.Statement, setting: setting_lib.Setting) -> str:
  """Returns the unit of privacy in words."""
  size = statement.group_size
  return setting.unit if size == 1 else f'a group of {size}: {setting.unit}'


def _capitalised(words: str) -> str:
  return words[:1].upper() + words[1:]


def checklist(
  statement: statement_lib.Statement, setting: setting_lib.Setting, void: str | None
) -> page.Html:
  """Lists the guarantee's parts and the unit that it protects, item by item."""
  several, worst = statement.several, statement.worst_case
  formal = page.join(
    'The sums of all ',
    page.figure(statement.num_rounds, 'num_rounds'),
    ' rounds of all runs' if several else ' rounds',
    ' with their noise, released together, and whatever is computed from'
    ' them, satisfy ρ-zCDP with ρ = ',
    page.figure(worst.rho, 'worst_case.rho'),
    ' and (ε, δ)-differential privacy with ε = ',
    page.figure(worst.epsilon, 'worst_case.epsilon'),
    ' and δ = ',
    page.delta(statement.delta, 'delta'),
    f', under {adjacency_name(statement)} adjacency.',
  )
  if void is not None:
    formal = page.join(page.element('strong', f'None: {void}.', class_='bad'))
  items = {
    'Setting': (
      'Central differential privacy. Whoever runs the server is trusted to'
      ' clip, sum, add noise and keep the noise secret as described.'
      ' Whoever sees what is released need not be trusted.'
    ),
    'Data accesses covered': (
      (
        f'The {len(statement.runs)} training runs of this page, over every device in their logs'
        if several
        else 'One training run, over every device in the log'
      )
      + ' that follows the protocol; devices that do not follow it cannot'
      ' weaken what the others have. Choosing hyperparameters, choosing'
      ' among checkpoints by a metric, evaluation, and '
      + ('other' if several else 'earlier or later')
      + ' runs on the same devices are not covered.'
    ),
    'Mechanism output': (
      'The privatised sum of every round, in order. So every model of the'
      ' run is covered, also those sent to devices during training, and so'
      ' is anything computed from these models alone.'
    ),
    'Unit of privacy': (
      f'{_capitalised(unit(statement, setting))}, with all it holds,'
      ' however much that is. One person with several devices has a weaker'
      ' guarantee, that of a group; people who share one have at least'
      ' this.'
    ),
    'Adjacency': _adjacency_words(statement),
    'Type of accounting': (
      (
        'Each run is a Gaussian mechanism whose sensitivity is taken over'
        ' all of its rounds together, and their ρ adds up'
        if several
        else 'The whole run is one Gaussian mechanism whose sensitivity'
        ' is taken over all rounds together'
      )
      + '; ε comes from the privacy loss distribution and ρ from zCDP.'
      + _from_draws(statement)
    ),
    'Assumptions': page.bullets(statement.assumptions),
    'Formal statement': formal,
    'Transparency': (
      'The participation log, the strategy, the noise multiplier and the'
      ' command at the end of this page reproduce its figures of privacy.'
      ' That the log is complete, that updates were clipped, and that'
      ' noise was drawn as stated rests on the operator and on the source'
      ' code.'
    ),
  }
  return page.element(
    'div',
    *(
      page.element('section', page.element('h3', name), page.element('div', words))
      for name, words in items.items()
    ),
    class_='checklist',
  )


def _from_draws(statement: statement_lib.Statement) -> str:
  if not isinstance(statement.drawn, drawn_lib.Amplified):
    return ' Nothing is gained from sampling or shuffling.'
  return (
    ' Nothing is gained from sampling but in the figures called amplified:'
    ' there each turn of a part is a release that includes an example by'
    ' chance, and ε is that of all of them composed.'
  )


def _adjacency_words(statement: statement_lib.Statement) -> str:
  if statement.adjacency == 'replace_one':
    return (
      'Replace-one: two runs are neighbours if the data of one unit are'
      ' replaced by any other data, and the rounds it is in stay the same.'
      ' Two clipped updates are at most two clip norms apart, so the'
      ' sensitivities here are twice those of zero-out.'
    )
  return (
    'Zero-out: two runs are neighbours if they differ in that the updates of'
    ' one unit are zeros in all its rounds. It resembles adding or removing a'
    ' unit, but the cohorts, their size and everyone else stay the same.'
  )


def outside(statement: statement_lib.Statement, setting: setting_lib.Setting) -> page.Html:
  """Lists the data and results that the guarantee does not cover."""
  from_log = (
    'counts and plots of it above'
    if statement.confidential
    else 'figures above that were read from it: rounds, k and b'
  )
  counts = [
    f'{count:,} {name}'
    for name, count in (
      ('clipped', setting.clipped_count),
      ('dropped for their size', setting.zeroed_count),
      ('dropped as not finite', setting.rejected_count),
    )
    if count is not None
  ]
  return page.bullets(
    [
      'Counts of clipped, dropped and refused updates'
      + (f' (here {", ".join(counts)} over the run)' if counts else '')
      + ', training losses and accuracies: computed from the updates and data'
      ' without noise. They are for the operator; publishing them is not'
      ' covered.',
      f'The participation log, and the {from_log}.',
      'A vocabulary or other preprocessing that was derived from the devices.',
      'Tuning of hyperparameters, comparison of runs, and the choice of a checkpoint by a metric.',
      'Evaluation on devices, and the figures it gives.',
      'How Gaussian noise is computed: in floating point, whose rounding the'
      ' analysis does not model, by a pseudorandom generator that is not a'
      ' cryptographic one, keyed with entropy of the operating system.',
      'Time: how long a round or a device takes.',
      *setting.notes,
    ]
  )


def _commitment(statement: statement_lib.Statement) -> list[page.Html]:
  """Shows the commitment that binds a published report to its log.

  The salt that opens the commitment is in the confidential report only.
  """
  given = statement.commitment
  if given is None:
    return []
  items = [('HMAC-SHA-256', page.element('code', given.hmac_sha256))]
  if given.salt is None:
    words = page.element(
      'p',
      'The operator is bound to one log by this value, which tells nothing of'
      ' the log. A reviewer who may see the log is shown the salt, too, and'
      ' checks both:',
    )
    salt = 'SALT'
  else:
    items.append(('salt', page.element('code', given.salt)))
    words = page.element(
      'p',
      'The report for publication has the first value alone. Keep the salt as'
      ' secret as the log: with it, guesses at the rows can be checked. The'
      ' files in the order above give the value:',
    )
    salt = given.salt
  return [
    page.card(
      page.element('h3', 'Commitment to the log'),
      page.definitions(*items),
      words,
      page.command(
        f'sha256sum LOG | cut -c1-64 | openssl dgst -sha256 -mac HMAC -macopt hexkey:{salt}'
      ),
    )
  ]


def provenance(statement: statement_lib.Statement, setting: setting_lib.Setting) -> page.Html:
  """Tells how to check the figures, with the files and releases needed."""
  versions = [('fl_dpftrl', fl_dpftrl.__version__)]
  versions.append(('python', platform.python_version()))
  for package in _PACKAGES:
    try:
      versions.append((package, importlib.metadata.version(package)))
    except importlib.metadata.PackageNotFoundError:
      continue
  hashes = [(f'log {file.name}', page.element('code', file.sha256)) for file in statement.log]
  for index, run in enumerate(statement.runs, 1):
    of_run = f'run {index}: ' if statement.several else ''
    hashes.append(
      (f'{of_run}strategy, its family and parameters', page.element('code', run.strategy.sha256))
    )
  command = setting.command if statement.confidential else publication.command(statement)
  return page.join(
    page.element('p', 'This command gives the figures again from the log:'),
    page.command(command),
    page.card(page.element('h3', 'SHA-256'), page.definitions(*hashes)),
    *_commitment(statement),
    page.element(
      'p',
      'Made with ' + ', '.join(f'{n} {v}' for n, v in versions) + '.',
      class_='quiet',
      style='margin-top:12px',
    ),
  )
