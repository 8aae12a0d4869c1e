"""Verdicts on claims: held or not, by which figure, and on what they rest."""

import dataclasses
import json
import re

import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.commands import dispatch
from fl_dpftrl.logs import unit_tables
from fl_dpftrl.participation.accounting.arithmetics import LATTICE, Arithmetic
from fl_dpftrl.prove.replaying import assumption_sentences, opened_runs
from fl_dpftrl.prove.replaying.verdicts import QUESTIONS
from tests import every_participation, made, pages
from tests.prove.replaying.in_memory import log_of

ROWS = [(0, 'a'), (4, 'a'), (9, 'a'), (1, 'b'), (6, 'b'), (3, 'c')]
OTHER = dict(noise_multiplier=3.0, num_rounds=12)


def folder(path, strategy='blt-b100', population=None, **changes):
  """A run of this package that may go on, and whose log therefore states its claim."""
  options = dict(noise_multiplier=9.0, clip_norm=1.0, participation=dpftrl.MinSep(40, 2), **changes)
  claim = dpftrl.Claim(strategy=strategy, **options)
  with dpftrl.Run(path, claim, delta=1e-6, population=population) as run:
    for t in range(3):
      with run.round([f'd{t % 2}']) as round_:
        round_.released()
  return path


def replayed(capsys, *words):
  """Status, output and errors of `replay`."""
  status = 0
  try:
    dispatch.run(['replay', *map(str, words)])
  except SystemExit as ended:
    status = ended.code
  return status, *capsys.readouterr()


def csv(path):
  path.write_text('round,device_id\n' + ''.join(f'{t},{d}\n' for t, d in ROWS))
  return path


SPELLINGS = [
  '3',
  '3@',
  '@1e-8',
  '0@1e-8',
  '-1@1e-8',
  '3@1',
  '3@0',
  '3@1e-8@2',
  'nan@1e-8',
  'inf@1e-8',
  'ε@δ',
  '3@nan',
  '',
]


@pytest.mark.parametrize('text', SPELLINGS)
def test_other_spellings_are_refused_before_the_log_is_read(capsys, text):
  status, out, err = replayed(capsys, 'absent', f'--claim={text}')
  assert (status, out) == (2, '') and err.count('\n') == 1 and len(err) < 300
  assert f'--claim={text}' in err and 'ε@δ, as 3@1e-8' in err


def test_a_second_claim_is_refused_and_not_the_only_one_judged(capsys):
  status, out, err = replayed(capsys, 'absent', '--claim=1@1e-6', '--claim=9@1e-5')
  assert (status, out) == (2, '') and '--claim=9@1e-5 is the second one' in err


def test_what_was_declared_decides_else_the_worst_case_and_never_the_observed(tmp_path):
  whole = dpftrl.replay(folder(tmp_path / 'run'), delta=1e-6)
  declared, so_far = whole.declared.guarantee.epsilon(), whole.worst_case.epsilon()
  assert so_far < declared
  between = whole.verdict((so_far + declared) / 2)
  assert (between.figure, between.held) == ('declared', False)
  assert between.epsilon == declared and between.reason is None
  assert whole.verdict(declared).held and not whole.verdict(declared * (1 - 1e-6)).held
  of_other = dpftrl.replay(
    dpftrl.open_run(csv(tmp_path / 'l.csv'), 'identity', **OTHER), delta=1e-6
  )
  verdict = of_other.verdict(of_other.worst_case.epsilon())
  assert (verdict.figure, verdict.held) == ('worst_case', True)


def test_the_claimed_delta_counts_and_not_the_first_one(tmp_path):
  statement = dpftrl.replay(folder(tmp_path / 'run'), delta=1e-3)
  guarantee = statement.declared.guarantee
  assert guarantee.epsilon(1e-9) > guarantee.epsilon()
  assert statement.verdict(guarantee.epsilon()).held
  assert not statement.verdict(guarantee.epsilon(), 1e-9).held
  assert statement.verdict(guarantee.epsilon(1e-9), 1e-9).held


@pytest.mark.parametrize('claimed', [1e6, 1e-6])
@pytest.mark.parametrize('kind', ['seed', 'noise', 'schema'])
def test_a_void_run_bears_nothing_out(tmp_path, kind, claimed):
  if kind == 'schema':
    options = dict(declared_num_rounds=12, declared_min_sep=6, **OTHER)
    run = dpftrl.open_run(csv(tmp_path / 'l.csv'), 'identity', **options)
    reason = 'the declared schema was not kept'
  elif kind == 'noise':
    options = OTHER | {'noise_multiplier': 0.0}
    run, reason = dpftrl.open_run(csv(tmp_path / 'l.csv'), 'identity', **options), 'no noise'
  else:
    run, reason = folder(tmp_path / 'run', void_reason='the seed is known'), 'the seed is known'
  verdict = dpftrl.replay(run, delta=1e-6).verdict(claimed)
  assert not verdict.held and reason in verdict.reason and reason in str(verdict)
  assert verdict.to_json()['epsilon'] is None and verdict.to_json()['held'] is False


def test_the_code_of_another_system_is_not_spoken_of(tmp_path):
  """Its log cannot say what code did, so that all of it is a question to the operator."""
  other = dpftrl.replay(dpftrl.open_run(csv(tmp_path / 'l.csv'), 'identity', **OTHER), delta=1e-6)
  ours = dpftrl.replay(folder(tmp_path / 'run'), delta=1e-6)
  clipping = 'each update is clipped to the clip norm, and what a device adds depends only on that'
  for statement, group in ((other, 'operator'), (ours, 'code')):
    verdict = statement.verdict(9.0)
    told = [s for s in verdict.assumes[group] if s.startswith(clipping)]
    assert len(told) == 1 and bool(verdict.assumes['code']) == (group == 'code')
  words = json.dumps(other.verdict(9.0).to_json(), ensure_ascii=False)
  assert not re.search('fl_dpftrl|this package|AES|declared', words)


def test_every_assumption_is_in_one_group_and_those_of_other_figures_are_left_out(tmp_path):
  statement = dpftrl.replay(folder(tmp_path / 'run'), delta=1e-6)
  verdict = statement.verdict(9.0)
  grouped = [s for group in assumption_sentences.GROUPS for s in verdict.assumes[group]]
  left_out = set(statement.assumptions) - set(grouped)
  assert len(grouped) == len(set(grouped)) and set(grouped) <= set(statement.assumptions)
  assert all(s.startswith(('worst case', 'observed')) for s in left_out) and len(left_out) == 3
  assert not any('decided who took part' in s for s in verdict.void_if)  # Declared covers it.
  recorded = 'declared: these limits are those that the log recorded before the first round'
  assert recorded in verdict.assumes['log']


def statements_of_every_kind(tmp_path):
  """Statements that together have each assumption on which an answer bears."""
  log, terms = log_of(ROWS, 12), dict(delta=1e-6)
  of = lambda **options: opened_runs.RecordedRun.of(log, made.BLT, noise_multiplier=3.0, **options)
  yield dpftrl.replay(of(), **terms)
  yield dpftrl.replay(of(participation=dpftrl.MinSep(12, 3)), **terms)
  yield dpftrl.replay(of(), adjacency='replace_one', **terms)
  yield dpftrl.replay([of(), of()], **terms)
  yield dpftrl.replay(of(participation=dpftrl.LossBudget(max_participations=4, min_sep=3)), **terms)
  for arithmetic in (Arithmetic.covered(9), Arithmetic(kind=LATTICE)):
    yield dpftrl.replay(of(arithmetic=arithmetic), **terms)
  once = log_of([(0, 'a')], 12)
  yield dpftrl.replay(dataclasses.replace(of(), log=once), **terms).publishable()
  owners = tmp_path / 'owners.csv'
  owners.write_text('device_id,unit_id,from_round\na,p,0\nb,p,0\nc,q,0\n')
  table = unit_tables.opened(owners)
  yield dpftrl.replay(dataclasses.replace(of(), units=table), **terms)
  fleet = dpftrl.Population(tmp_path / 'fleet', epsilon=4.0, delta=1e-6)
  folder(tmp_path / 'of-fleet', strategy='identity', population=fleet)
  yield dpftrl.replay(tmp_path / 'fleet', **terms)


def test_each_question_rests_on_a_sentence_and_each_sentence_on_a_question(tmp_path):
  statements = list(statements_of_every_kind(tmp_path))
  said = [s for statement in statements for s in statement.assumptions]
  starts = [start for question in QUESTIONS for start in question['sentences']]
  assert [start for start in starts if not any(s.startswith(start) for s in said)] == []
  for statement in statements:  # Questions 1 to 7, 10 and 11 are of every statement.
    asked = [
      any(s.startswith(tuple(q['sentences'])) for s in statement.assumptions) for q in QUESTIONS
    ]
    assert all(asked[:7]) and all(asked[9:11])
    assert asked[11] == (len(statement.runs) > 1)
    verdict = statement.verdict(1e9)
    assert len(verdict.void_if) >= 9 and len(set(verdict.void_if)) == len(verdict.void_if)


def test_a_secret_draw_that_was_seen_voids_the_amplified_figure():
  draws = every_participation.EXAMPLES['bins'].participation
  run = opened_runs.RecordedRun.of(
    log_of([(0, 'a'), (3, 'a')], 6), made.BLT, noise_multiplier=3.0, participation=draws
  )
  verdict = dpftrl.replay(run, delta=1e-6).verdict(9.0)
  assert verdict.figure == 'amplified' and any('saw the draws' in s for s in verdict.void_if)
  assert verdict.assumes['log'] == []  # No log shows that participation was drawn.


def test_several_runs_and_a_population_are_judged_by_what_was_declared_for_all(tmp_path):
  runs = [folder(tmp_path / name) for name in ('first', 'second')]
  whole = dpftrl.replay(runs, delta=1e-6)
  epsilon = whole.declared.guarantee.epsilon()
  assert whole.verdict(epsilon).held and not whole.verdict(epsilon * 0.999).held
  fleet = dpftrl.Population(tmp_path / 'fleet', epsilon=4.0, delta=1e-6)
  folder(tmp_path / 'of-fleet', strategy='identity', population=fleet)
  statement = dpftrl.replay(tmp_path / 'fleet', delta=1e-6)
  assert statement.verdict(4.0).held and not statement.verdict(3.9).held
  assert statement.observed.epsilon() < 3.9 and statement.verdict(4.0).figure == 'declared'


def test_the_command_judges_and_says_which_figure_to_quote(tmp_path, capsys):
  run = folder(tmp_path / 'run')
  status, out, err = replayed(capsys, run, '--claim=50@1e-7', '--delta=1e-7', '--delta=1e-9')
  assert (status, err) == (0, '')
  assert out.startswith('claim               ε ≤ 50 at δ = 1e-07 is held, by declared, whose ε is')
  assert out.count('ε at δ = 1e-07') == out.count('ε at δ = 1e-09') == 1
  quoted = 'Quote what was declared: rounds may follow, and the worst case is only that of the'
  assert quoted in out and 'void if\n- ' in out
  status, out, err = replayed(capsys, run, '--claim=0.1@1e-7', '--json')
  document = json.loads(out)
  assert status == 3 and 'ε ≤ 0.1 at δ = 1e-07 is not held, by declared' in err
  assert document['delta'] == 1e-7 and document['verdict']['held'] is False
  assert document['verdict']['epsilon'] == document['declared']['epsilon']
  without = replayed(capsys, run, '--delta=1e-7', '--json')[1]
  assert json.loads(without) == {k: v for k, v in document.items() if k != 'verdict'}


def test_the_page_and_the_report_have_the_same_twelve_questions():
  asked = [question for question, _ in pages.rows('report.md', 'ask')]
  assert asked == [f'{i}. {q["ask"]}' for i, q in enumerate(QUESTIONS, 1)]
  said = [words for _, words in pages.rows('report.md', 'ask')]
  for words, question in zip(said, QUESTIONS):
    assert any(
      words.startswith(start) or start.startswith(words) for start in question['sentences']
    )
