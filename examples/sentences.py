"""Sentences with classes: a table by `datasets`, a tokenizer of `transformers`, BERT's space with a head of classes.

`python -m l2l_nas search space.pool=examples/sentences.py:build space.args.table=intents.csv space.args.tokenizer=bert`
"""

from datasets import load_dataset
from transformers import AutoTokenizer

from l2l_nas import Data, Problem
from search_spaces import bert


def build(table: str, tokenizer: str, length: int = 64, **sizes: int) -> Problem:
    own = AutoTokenizer.from_pretrained(tokenizer)

    def tokens(row: dict[str, str]) -> dict[str, list[int]]:
        made = own(row["text"], truncation=True, padding="max_length", max_length=length)
        kinds, padding = made["token_type_ids"], [1 - place for place in made["attention_mask"]]
        return {"tokens": made["input_ids"], "kinds": kinds, "padding": padding}

    rows = load_dataset("csv", data_files=table, split="train").class_encode_column("label").map(tokens)
    data = Data.from_dataset(rows, columns=(("tokens", "kinds", "padding"), "label"))
    classes = rows.features["label"].num_classes
    return Problem(bert.build(vocabulary=len(own), length=length, classes=classes, **sizes), data)
