"""What a page of a report holds."""

import re
from html.parser import HTMLParser


class Page(HTMLParser):
    """Rows of every table, labels of every picture, titles, and what it would load."""

    def __init__(self, text):
        super().__init__()
        self.tables, self.pictures, self.titles, self.outside, self.tags = [], [], [], [], []
        self.texts = []
        self.feed(text)
        assert not self.tags, f"not closed: {self.tags}"

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if tag not in ("meta", "br", "link", "img"):
            self.tags.append(tag)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if tag == "svg":
            self.pictures.append(attrs["aria-label"])
            assert "viewbox" in attrs and "width" not in attrs and "height" not in attrs
        if tag in ("script", "link", "img", "iframe", "object"):
            self.outside.append(tag)
        self.outside += [
            value
            for key, value in attrs.items()
            if key in ("src", "href", "xlink:href") and not value.startswith(("#", "data:"))
        ]

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.tags.pop() == tag

    def handle_data(self, data):
        if self.tags and self.tags[-1] in ("td", "th"):
            self.tables[-1][-1][-1] += data
        if self.tags and self.tags[-1] == "h2":
            self.titles.append(data)
        self.texts.append(data)


def page_of(path):
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    assert page.outside == []
    assert not re.search(r"url\((?!#)|@import", text)
    ids = re.findall(r'id="([^"]+)"', text)
    drawn = [name for name in ids if re.match(r"[pm][0-9a-f]{6}", name)]
    assert len(drawn) == len(set(drawn)), "pictures share names of their parts"
    return page
