import json
import re

import jinja2
import pytest

from fl_dpftrl.prove.reports import page

HOSTILE = '</script><b title="x">&'


def render(title='t', embedded=None):
  return page.render('base.html', title=title, kind='x', embedded=embedded)


def test_text_cannot_become_markup():
  made = render(HOSTILE, {'name': HOSTILE})
  assert '<h1>&lt;/script&gt;&lt;b title=&#34;x&#34;&gt;&amp;</h1>' in made
  assert made.count('</script>') == 1 and '<b ' not in made
  data = re.search('id="x">(.*)</script>', made)[1]
  assert json.loads(data) == {'name': HOSTILE}


def test_a_variable_that_is_not_given_is_an_error():
  with pytest.raises(jinja2.UndefinedError, match='kind'):
    page.render('base.html', title='t', embedded=None)


def test_numbers_that_json_lacks_are_refused():
  with pytest.raises(ValueError):
    render(embedded=float('nan'))
