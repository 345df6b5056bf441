from __future__ import annotations

import socket

import pytest

from l2l_nas.errors import SettingError, StorageError, without_passwords
from l2l_nas.nas.study.database import open_storage, parse_address


def test_an_address_chooses_its_driver_and_never_shows_its_password():
    pytest.importorskip("psycopg")
    for url in ("postgresql://me:s%40c@db:5432/x?sslmode=require", "postgres://me:s%40c@db:5432/x?sslmode=require"):
        address = parse_address(url)
        assert address.url == "postgresql+psycopg://me:s%40c@db:5432/x?sslmode=require"
        assert address.shown == "postgresql+psycopg://me@db:5432/x?sslmode=require"
        assert "s%40c" not in repr(address)
        assert address.explain(ValueError("no s@c here\nat all")) == "no *** here"
    given = parse_address("postgresql://me@db/x", password="s@c")
    assert given.url == "postgresql+psycopg://me:s%40c@db/x"
    assert given.shown == "postgresql+psycopg://me@db/x"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nothing", "is no address; write postgresql://"),
        ("oracle://me@db/x", "no storage 'oracle'; there are postgresql, mysql, sqlite, journal and grpc"),
        ("sqlite://", "needs a file"),
        ("journal://x", "a journal is named journal:///FILE"),
        ("journal:///", "a journal is named journal:///FILE"),
        ("grpc://host", "a gRPC proxy is named grpc://HOST:PORT"),
        ("grpc://host:many", "a gRPC proxy is named grpc://HOST:PORT"),
        ("sqlite:///x?password=abc", "write the password before the @"),
    ],
)
def test_an_address_that_is_none_is_refused(text, says):
    with pytest.raises(SettingError, match=says.replace("(", r"\(")):
        parse_address(text)


def test_a_missing_driver_is_named_with_its_package(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SettingError, match=r"needs the package psycopg: pip install 'l2l-nas\[distributed\]'"):
        parse_address("postgresql://me@db/x")
    with pytest.raises(SettingError, match="needs the package pymysql: pip install pymysql"):
        parse_address("mysql://me@db/x")
    with pytest.raises(SettingError, match=r"needs grpcio and protobuf: pip install 'l2l-nas\[distributed\]'"):
        parse_address("grpc://db:1")


def test_passwords_are_blotted_out_of_any_text():
    text = "a postgresql://me:p@ss:w/rd@db/x failed, mysql://u:1@h, sqlite:///a.db, http://h:80/x"
    assert without_passwords(text) == (
        "a postgresql://me:***@db/x failed, mysql://u:***@h, sqlite:///a.db, http://h:80/x"
    )


@pytest.mark.slow
@pytest.mark.parametrize("url", ["sqlite:///{}/no/such.db", "journal:///{}/no/such.log"])
def test_a_file_that_cannot_be_made_is_named(tmp_path, url):
    with pytest.raises(StorageError, match=r"no/such\..*cannot be opened"):
        open_storage(parse_address(url.format(tmp_path)))


def test_a_server_that_is_not_there_is_named_in_one_line(monkeypatch):
    monkeypatch.setattr("l2l_nas.nas.study.database._CONNECT_SECONDS", 1)
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))  # bound, but nobody listens
        port = one.getsockname()[1]
        for package, url in (
            ("psycopg", f"postgresql://me:s3cret@127.0.0.1:{port}/x"),
            ("grpc", f"grpc://127.0.0.1:{port}"),
        ):
            pytest.importorskip(package)
            with pytest.raises(StorageError) as caught:
                open_storage(parse_address(url))
            assert f"127.0.0.1:{port}" in str(caught.value)
            assert "cannot be opened" in str(caught.value)
            assert "s3cret" not in str(caught.value)
            assert "\n" not in str(caught.value)
