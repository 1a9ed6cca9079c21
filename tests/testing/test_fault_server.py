"""The server serves files well, and badly exactly where and when it is told to."""

import contextlib
import http.client
import threading
import time
import urllib.parse

import pytest
import zarr

import torchdata_insitu as tdi
from torchdata_insitu.testing import FaultServer, make_store

FILES = {"t/c/0": b"0123456789", "t/c/1": b"abc", "zarr.json": b"{}", "a b": b"space"}


@contextlib.contextmanager
def serving(files=FILES, **options):
    with FaultServer(files, **options) as server:
        yield server


def get(server, key="t/c/0", method="GET", headers=None):
    """Status, body and headers of one answer over a connection of its own."""
    host = urllib.parse.urlsplit(server.url).netloc
    with contextlib.closing(http.client.HTTPConnection(host, timeout=10)) as connection:
        connection.request(method, "/" + urllib.parse.quote(key), headers=headers or {})
        with connection.getresponse() as answer:
            return answer.status, answer.read(), answer.headers


def test_files_are_served_from_mapping_folder_and_store(tmp_path):
    store = make_store({"t": (2, 2)}, chunks=(2, 2), path=tmp_path / "a.zarr")
    with serving() as server:
        assert get(server)[:2] == (200, b"0123456789")
        assert get(server, "a b")[:2] == (200, b"space")
        assert get(server, "t/c/9")[0] == 404
    content = (tmp_path / "a.zarr/t/c/0/0").read_bytes()
    for files in (tmp_path / "a.zarr", store):
        with serving(files) as server:
            assert get(server, "t/c/0/0")[:2] == (200, content)
            assert get(server, "t/../t/c/0/0")[0] == 404


def test_head_has_the_length_and_no_body():
    with serving() as server:
        status, body, headers = get(server, method="HEAD")
        assert (status, body, headers["Content-Length"]) == (200, b"", "10")


@pytest.mark.parametrize(
    "asked, status, body",
    [
        ("bytes=2-4", 206, b"234"),
        ("bytes=7-", 206, b"789"),
        ("bytes=-3", 206, b"789"),
        ("bytes=8-99", 206, b"89"),
        ("bytes=99-", 416, b""),
        ("bytes=-", 200, b"0123456789"),
    ],
)
def test_ranges(asked, status, body):
    with serving() as server:
        assert get(server, headers={"Range": asked})[:2] == (status, body)
        assert server.log[0].byte_range == asked
    with serving(ranges=False) as server:
        assert get(server, headers={"Range": asked})[:2] == (200, b"0123456789")


def test_tags():
    with serving() as server:
        tag = get(server)[2]["ETag"]
        assert get(server, headers={"If-Match": tag})[0] == 200
        assert get(server, headers={"If-Match": '"other"'})[0] == 412
    with serving(etags=False) as server:
        assert get(server)[2]["ETag"] is None


def test_connection_is_kept_for_further_requests():
    with serving() as server:
        host = urllib.parse.urlsplit(server.url).netloc
        with contextlib.closing(http.client.HTTPConnection(host, timeout=10)) as connection:
            for key in ("t/c/0", "t/c/1", "none", "t/c/0"):
                connection.request("GET", "/" + key)
                assert connection.getresponse().read()
        assert [served.status for served in server.log] == [200, 200, 404, 200]


@pytest.mark.parametrize("status", [503, 429, 500, 408, 404, 403, 401, 410])
def test_status_once(status):
    with serving() as server:
        server.fail("t/c/0", status=status, headers={"Retry-After": "7"}, times=1)
        found, _, headers = get(server)
        assert (found, headers["Retry-After"]) == (status, "7")
        assert get(server)[0] == 200
        assert server.requests == {"t/c/0": 2}
        assert [served.status for served in server.log] == [status, 200]


def test_faults_strike_from_the_nth_request_on_and_n_times():
    with serving() as server:
        server.fail(status=503, first=3, times=2)
        for key in ("t/c/0", "t/c/1"):
            assert [get(server, key)[0] for _ in range(5)] == [200, 200, 503, 503, 200]
        assert get(server, "zarr.json")[0] == 200
        server.heal()
        server.fail(status=503, first=2)
        assert [get(server)[0] for _ in range(3)] == [200, 503, 503]


def test_newest_rule_that_holds_wins():
    with serving() as server:
        server.fail(status=503)
        server.fail("t/c/0", status=404, times=1)
        assert [get(server)[0] for _ in range(2)] == [404, 503]
        server.heal()
        assert get(server)[0] == 200


def test_body_is_cut():
    with serving() as server:
        server.fail(cut_after=4)
        with pytest.raises(http.client.IncompleteRead) as caught:
            get(server)
        assert caught.value.partial == b"0123"


def test_length_is_wrong():
    with serving() as server:
        server.fail("t/c/0", content_length=12)
        server.fail("t/c/1", content_length=2)
        with pytest.raises(http.client.IncompleteRead):
            get(server)
        assert get(server, "t/c/1")[1] == b"ab"


def test_other_body_with_a_good_status():
    with serving() as server:
        server.fail(body=b"<html>log in</html>", headers={"Content-Type": "text/html"})
        status, body, headers = get(server)
        assert (status, body, headers["Content-Type"]) == (200, b"<html>log in</html>", "text/html")
        assert get(server, "t/c/9")[:2] == (200, b"<html>log in</html>")


def test_connection_is_reset():
    with serving() as server:
        server.fail(reset=True, times=1)
        with pytest.raises((ConnectionResetError, http.client.RemoteDisconnected)):
            get(server)
        assert get(server)[0] == 200
        assert [served.status for served in server.log] == [0, 200]


def test_answers_take_their_time():
    with serving(latency_s=0.05) as server:
        server.fail("t/c/1", latency_s=0.1)
        for key, least_s in (("t/c/0", 0.05), ("t/c/1", 0.15)):
            start = time.perf_counter()
            get(server, key)
            assert time.perf_counter() - start >= least_s


def in_thread(function):
    results = []

    def call():
        try:
            results.append(function())
        except OSError as error:
            results.append(type(error))
        except http.client.HTTPException as error:
            results.append(type(error))

    thread = threading.Thread(target=call)
    thread.start()
    return thread, results


def test_stalled_requests_go_on_when_released():
    with serving() as server:
        server.fail(stall=True)
        started = [in_thread(lambda: get(server)[1]) for _ in range(3)]
        assert server.wait_for(lambda server: server.n_stalled == 3)
        server.release()
        for thread, results in started:
            thread.join(10)
            assert results == [b"0123456789"]
        assert get(server)[0] == 200
        assert (server.n_stalled, server.most_inflight) == (0, 3)


def test_closing_ends_what_is_stalled_or_late():
    start = time.perf_counter()
    with serving(latency_s=30.0) as server:
        server.fail("t/c/1", stall=True)
        started = [in_thread(lambda key=key: get(server, key)) for key in ("t/c/0", "t/c/1")]
        assert server.wait_for(lambda server: server.requests.total() == 2)
    for thread, results in started:
        thread.join(10)
        assert issubclass(results[0], (OSError, http.client.HTTPException))
    assert time.perf_counter() - start < 10


def test_server_that_is_down_refuses_and_comes_back_on_the_same_port():
    with serving() as server:
        url = server.url
        get(server)
        server.down()
        with pytest.raises(ConnectionRefusedError):
            get(server)
        server.up()
        assert server.url == url
        assert get(server)[0] == 200
        server.restart()
        assert get(server)[0] == 200


def test_restart_resets_open_connections():
    with serving() as server:
        host = urllib.parse.urlsplit(server.url).netloc
        with contextlib.closing(http.client.HTTPConnection(host, timeout=10)) as connection:
            connection.request("GET", "/t/c/0")
            assert connection.getresponse().read()
            server.restart()
            with pytest.raises((ConnectionError, http.client.RemoteDisconnected)):  # noqa: PT012
                connection.request("GET", "/t/c/0")
                connection.getresponse()


def test_other_methods_are_not_allowed():
    with serving() as server:
        assert get(server, method="PROPFIND")[0] == 405


def test_zarr_reads_through_it():
    with serving(make_store({"t": (6, 2)}, chunks=(2, 2))) as server:
        array = zarr.open_array(tdi.open_store(server.url), path="t", mode="r")
        assert array[3].tolist() == [6.0, 7.0]
        assert server.requests["t/c/1/0"] == 1


@pytest.mark.parametrize("options", [{"times": 0}, {"first": 0}])
def test_rules_that_never_hold_are_refused(options):
    with serving() as server, pytest.raises(ValueError, match="counted from 1"):
        server.fail(status=503, **options)
