"""WikiText's text as it is written, and back."""

from __future__ import annotations

import random

import pytest

from l2l_nas.text.wikitext import count_words, detokenized, tokens_of

LINES = {
    "He had a guest @-@ starring role , 2 @,@ 000 of 1 @.@ 5 m .": "He had a guest-starring role, 2,000 of 1.5 m.",
    '= = Career = = \n " Teddy \'s Story " ( of 2004 ) ;': '== Career ==\n"Teddy\'s Story" (of 2004);',
    "Dr. Li didn 't , in the U.S. , see [ ... ] <unk> @-@ based J. Doe": "Dr. Li didn't, in the U.S., see [...] "
    "<unk>-based J. Doe",
    "the Bros. Grimm ; Dr . No": "the Bros.  Grimm; Dr . No",
}
NASTY = ["a", "B", "7", "-", ",", ".", "'", "'s", "@-@", "@,@", "@", '"', "(", ")", "=", "==", "U.S.", "Bros.", "<unk>"]
NASTY += ["%", "...", "a-b", "1,000", "n't", "(x)", '"', "é", "@.@", ".5", "3.", '"x', ":", "!?"]


def tokenized(text):
    """The tokens of each written line, with a space between them; two spaces stand behind one that is whole."""
    lines = []
    for words in (line.split(" ") if line else [] for line in text.split("\n")):
        is_whole = [index + 1 < len(words) and not words[index + 1] for index in range(len(words))]
        pairs = [pair for pair in zip(words, is_whole, strict=True) if pair[0]]
        lines.append(" ".join(one for word, whole in pairs for one in ([word] if whole else tokens_of(word))))
    return "\n".join(lines)


@pytest.mark.parametrize("text", LINES)
def test_text_is_written_as_people_write_it(text):
    assert detokenized(text) == LINES[text]


@pytest.mark.parametrize("seed", range(20))
def test_every_token_comes_back(seed):
    rng = random.Random(seed)
    lines = [[rng.choice(NASTY) for _ in range(rng.randrange(30))] for _ in range(100)]
    text = "\n".join(" ".join(line) for line in lines)
    assert tokenized(detokenized(text)) == text


def test_words_are_counted_with_the_ends_of_lines():
    assert count_words(" \n = Robert = \n \n He was . \n ") == 8  # two ends of lines; those around are none
