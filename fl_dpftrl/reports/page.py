"""Building blocks of a report's HTML.

Everything that is not `Html` is escaped when it enters an element, so text from
a log or a flag cannot become markup, nor act on the text beside it.
"""

import html
import json
from collections.abc import Sequence
from typing import Any

from fl_dpftrl import messages, rounding

_VOID = ('meta', 'line', 'rect')
_LONGEST = 10_000  # characters of a command


class Html(str):
  """Text that is already markup."""


def element(name: str, /, *children: Any, **attributes: Any) -> Html:
  """Returns an element; `class_` and the like lose their underscore."""
  given = ''.join(
    f' {key.rstrip("_").replace("_", "-")}="{html.escape(_shown(value))}"'
    for key, value in attributes.items()
    if value is not None
  )
  if name in _VOID:
    return Html(f'<{name}{given}/>')
  return Html(f'<{name}{given}>{join(*children)}</{name}>')


def join(*children: Any, by: str = '') -> Html:
  """Joins children, each escaped unless it is Html."""
  return Html(
    by.join(c if isinstance(c, Html) else html.escape(_shown(c), quote=False) for c in children)
  )


def _shown(value: Any) -> str:
  """Returns text in which no character is invisible or turns its direction."""
  return messages.lines(str(value))


def command(text: str) -> Html:
  """Shows a command to be run again, in one line."""
  return element('pre', messages.one_line(text, limit=_LONGEST))


def document(title: str, *children: Any, style: str = '') -> str:
  """Returns a whole page, which refers to nothing outside itself."""
  head = element(
    'head',
    element('meta', charset='utf-8'),
    element('meta', name='viewport', content='width=device-width, initial-scale=1'),
    element('title', title),
    element('style', Html(STYLE + style)),
  )
  body = element('body', element('main', element('h1', title), *children))
  return f'<!DOCTYPE html>\n{element("html", head, body, lang="en")}\n'


def definitions(*items: tuple[Any, Any], **attributes: Any) -> Html:
  """Lists names with their values."""
  rows = [element('div', element('dt', name), element('dd', value)) for name, value in items]
  return element('dl', *rows, **attributes)


def bullets(items: Sequence[Any]) -> Html:
  return element('ul', *(element('li', item) for item in items))


def card(*children: Any, kind: str = '') -> Html:
  """Returns a box; its kind is a class of the style sheet, such as 'bad'."""
  return element('section', *children, class_=f'card {kind}'.rstrip())


def side_by_side(*children: Any) -> Html:
  """Returns boxes in columns, or stacked on a narrow page."""
  return element('div', *children, class_='cards')


def quiet(*children: Any) -> Html:
  """Returns a paragraph of explanation."""
  return element('p', *children, class_='quiet')


def table(head: Sequence[Any], rows: Sequence[Sequence[Any]], **attributes: Any) -> Html:
  """Returns a table whose first cell names each row; stacked on a narrow page.

  Words in a span of the class `name` show on a narrow page only, which has no
  header row.
  """
  lines = [
    element(
      'tr',
      element('th', first, scope='row'),
      *(
        element('td', element('span', name, class_='name'), element('span', cell))
        for name, cell in zip(head[1:], cells, strict=True)
      ),
    )
    for first, *cells in rows
  ]
  names = (element('th', name, scope='col') for name in head)
  return element(
    'table', element('thead', element('tr', *names)), element('tbody', *lines), **attributes
  )


def embedded_json(identifier: str, value: Any) -> Html:
  """Embeds data for programs, which browsers neither show nor run."""
  text = json.dumps(value, allow_nan=False).replace('<', '\\u003c')
  return element('script', Html(text), type='application/json', id=identifier)


def power_of_ten(value: float) -> Html:
  """Writes δ as a power of ten, rounded up: 10⁻⁶ rather than 1e-06."""
  mantissa, exponent = f'{float(rounding.up(value, digits=7)):.6e}'.split('e')
  mantissa = mantissa.rstrip('0').rstrip('.')
  power = Html(f'10<sup>{int(exponent)}</sup>'.replace('-', '−'))
  return power if mantissa == '1' else join(f'{mantissa}·', power)


def delta(value: float, field: str) -> Html:
  """Shows δ as a figure."""
  return figure(value, field, power_of_ten(value))


def figure(value: float | None, field: str, text: str | None = None) -> Html:
  """Shows a figure for people, and in full for programs.

  Args:
    value: the figure, which is rounded up.
    field: where the embedded JSON has it: keys and indices, separated by dots.
    text: text shown to people instead of the rounded figure.
  """
  if value is None:
    return Html('none')
  shown = rounding.up(value) if text is None else text
  return element('data', shown, value=repr(value), data_field=field)


STYLE = """
:root { color-scheme: light dark; --ink: #1c2127; --soft: #58626d;
  --paper: #fff; --card: #f4f6f8; --line: #d6dce2; --accent: #1f5fa8;
  --bad: #a4161a; --bad-card: #fdecec; --warn: #7a5200; --warn-card: #fff5dd; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaee; --soft: #a2adb8;
  --paper: #14181c; --card: #1e242a; --line: #38424c; --accent: #7db4f0;
  --bad: #ff9a9a; --bad-card: #3a1b1d; --warn: #f2cc7a;
  --warn-card: #352a12; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1040px; margin: 0 auto; padding: 24px 20px 64px; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 16px; }
h2 { font-size: 1.2rem; margin: 40px 0 12px; }
h3 { font-size: 1rem; margin: 0 0 8px; }
p { margin: 0 0 10px; }
li { margin: 0 0 6px; }
ul, ol { margin: 0 0 10px; padding-left: 22px; }
.card { background: var(--card); border: 1px solid var(--line);
  border-radius: 8px; padding: 16px 18px; }
.cards { display: grid; gap: 14px;
  grid-template-columns: repeat(auto-fit, minmax(min(270px, 100%), 1fr)); }
.headline { border-left: 6px solid var(--accent); }
.headline .figure { font-size: clamp(1.5rem, 5vw, 2.1rem); line-height: 1.25;
  font-weight: 650; margin: 0 0 8px; }
.bad { background: var(--bad-card); border-color: var(--bad); }
.bad .figure, .bad h3, strong.bad { color: var(--bad); background: none; }
.warn { background: var(--warn-card); border-color: var(--warn); }
main > .card + .card, main > .card + .cards,
  main > .cards + .card { margin-top: 14px; }
figure { margin: 0; }
figcaption { margin-top: 8px; }
h3.run { margin: 24px 0 10px; }
.dashed { border-style: dashed; }
.quiet { color: var(--soft); font-size: 0.92rem; }
.void dd data, .void td data { text-decoration: line-through;
  color: var(--soft); }
dl { margin: 0; }
dl > div { display: flex; justify-content: space-between; gap: 14px;
  padding: 5px 0; border-top: 1px solid var(--line); }
dl > div:first-child { border-top: 0; }
dt { color: var(--soft); }
dd { margin: 0; text-align: right; font-variant-numeric: tabular-nums;
  overflow-wrap: break-word; }
.card > p + dl { margin-top: 8px; }
pre { overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere;
  background: var(--card); border: 1px solid var(--line); border-radius: 6px;
  padding: 10px 12px; font: 0.88rem/1.45 ui-monospace, monospace; }
sup { line-height: 0; }
code { font: 0.82rem/1.4 ui-monospace, monospace; overflow-wrap: anywhere; }
svg { width: 100%; height: auto; display: block; }
svg text { font-size: 12px; fill: var(--soft); font-family: inherit; }
svg text.title { font-size: 13px; font-weight: 600; fill: var(--ink); }
svg line { stroke: var(--line); }
svg rect { fill: var(--accent); }
svg line.mark { stroke: var(--bad); stroke-width: 1.5; stroke-dasharray: 4 3; }
svg text.mark { fill: var(--bad); }
table { width: 100%; border-collapse: collapse;
  font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: 6px 14px 6px 0;
  border-top: 1px solid var(--line); overflow-wrap: anywhere; }
thead th { border-top: 0; color: var(--soft); font-weight: 400;
  font-size: 0.92rem; overflow-wrap: normal; }
tbody th { font-weight: 600; overflow-wrap: normal; }
td data { white-space: nowrap; }
td > .name, th > .name { display: none; }
.card > dl + p, .card > table + p { margin-top: 12px; }
.card > :last-child { margin-bottom: 0; }
.runs tbody th { white-space: nowrap; }
.runs td:last-child { min-width: 9em; }
@media (max-width: 759px) { thead { display: none; }
  tr { display: block; border-top: 1px solid var(--line); padding: 6px 0; }
  tbody tr:first-child { border-top: 0; }
  tbody th { display: block; }
  th > .name { display: inline; }
  td { display: flex; justify-content: space-between; gap: 14px; }
  tbody th, td { border-top: 0; padding: 3px 0; }
  td > span { text-align: right; }
  td > .name { display: inline; text-align: left; color: var(--soft);
    flex: none; max-width: 55%; } }
.checklist > section { border-top: 1px solid var(--line); padding: 14px 0 4px; }
@media (min-width: 760px) { .checklist > section { display: grid;
  grid-template-columns: 210px 1fr; gap: 20px; } }
@media print { main { max-width: none; } .card { break-inside: avoid; } }
"""
