"""Checks of the built site, as a hook of MkDocs: what it finds ends `make docs`.

A fence that did not become a block stands as running text. A link or picture without a
target leads nowhere. A script or font from elsewhere needs a network when the page is read.
"""

import html.parser
import logging
import pathlib
import re
from urllib.parse import unquote, urlsplit

_FENCE = re.compile(r'^\s*(?:[-*] +|\d+\. +)?(`{3,}|~{3,})', re.M)
_MARKS = re.compile(r'`{3}|~{3}')
# What a fence leaves behind as code within a line: its language, if any, then a new line.
_LANGUAGE = re.compile(r'(?:bash|console|json|python|sh|text|toml|yaml)?\n')
# The name of a flag in code within a line: a browser would break it after its hyphens.
_CODE, _FLAG = re.compile(r'<code>[^<]*</code>'), re.compile(r'(?<![^\s>])--\w+')
_LOADED = {'script': 'src', 'link': 'href', 'img': 'src', 'iframe': 'src', 'source': 'src'}


class Page(html.parser.HTMLParser):
  """A page of the site.

  Attributes:
    ids: anchors.
    links: (tag, target) of each link, picture, script and style sheet.
    blocks: number of blocks of code.
    stray: code and marks of fences that are running text.
  """

  def __init__(self, text: str):
    super().__init__()
    self.ids: set[str] = set()
    self.links: list[tuple[str, str]] = []
    self.blocks = 0
    self.stray: list[str] = []
    self._open: list[str] = []
    self._code = ''
    self.feed(text)
    self.close()

  def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
    given = dict(attrs)
    self.ids.update(value for name in ('id', 'name') if (value := given.get(name)))
    target = given.get('href' if tag == 'a' else _LOADED.get(tag, ''))
    if target and given.get('rel') != 'canonical':
      self.links.append((tag, target))
    self.blocks += tag == 'pre'
    if tag in ('pre', 'code', 'script', 'style'):
      self._open.append(tag)
      self._code = ''

  def handle_endtag(self, tag: str) -> None:
    if tag in self._open:
      while self._open.pop() != tag:
        pass
      if tag == 'code' and 'pre' not in self._open and _LANGUAGE.match(self._code):
        self.stray.append(self._code)

  def handle_data(self, data: str) -> None:
    if 'code' in self._open:
      self._code += data
    elif not self._open and _MARKS.search(data):
      self.stray.append(data)


def fences(markdown: str) -> int:
  """Returns the number of fenced blocks that a page's source opens."""
  count, closing = 0, ''
  for mark in _FENCE.findall(markdown):
    if not closing:
      count, closing = count + 1, mark
    elif mark == closing:
      closing = ''
  return count


def problems(site: pathlib.Path) -> list[str]:
  """Returns a line for each fault of the pages in a folder."""
  pages = {
    path.resolve(): Page(path.read_text())
    for path in sorted(site.rglob('*.html'))
    if path.name != '404.html'  # Its links begin at the root of a server.
  }
  found = []
  for path, page in pages.items():
    name = path.relative_to(site.resolve())
    found += [f'{name}: no block of code, but running text: {_short(text)}' for text in page.stray]
    for tag, target in page.links:
      wrong = _fault(path, tag, target, pages)
      if wrong:
        found.append(f'{name}: {_short(target)} {wrong}')
  return list(dict.fromkeys(found))


def _fault(path: pathlib.Path, tag: str, target: str, pages: dict[pathlib.Path, Page]) -> str:
  """Returns what is wrong with a link of the page at a path; nothing where it is right."""
  parts = urlsplit(target)
  if parts.scheme == 'data':
    return ''
  if parts.scheme or parts.netloc:
    return '' if tag == 'a' else 'is loaded from elsewhere'
  aim = (path.parent / unquote(parts.path)).resolve() if parts.path else path
  aim = aim / 'index.html' if aim.is_dir() else aim
  if not aim.exists():
    return 'has no target'
  if parts.fragment and aim in pages and unquote(parts.fragment) not in pages[aim].ids:
    return 'has no such anchor'
  return ''


def _short(text: str) -> str:
  line = ' '.join(text.split())
  return line if len(line) <= 80 else line[:79] + '…'


_log = logging.getLogger('mkdocs.hooks.site')


def on_page_content(html: str, page, **_) -> str:
  """Compares a page's fences with its blocks, and keeps flags whole. Called by MkDocs."""
  blocks, wanted = Page(html).blocks, fences(page.markdown)
  if blocks < wanted:
    _log.warning(f'{page.file.src_uri}: {wanted} fences became {blocks} blocks')
  whole = lambda code: _FLAG.sub(r'<span class="flag">\g<0></span>', code[0])
  return _CODE.sub(whole, html)


def on_post_build(config, **_) -> None:
  """Warns of each fault of the built site, so that a strict build fails. Called by MkDocs."""
  for line in problems(pathlib.Path(config.site_dir)):
    _log.warning(line)
