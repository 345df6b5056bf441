"""One study of several runs, on one machine or many."""
