"""One store in every kind of place, written by plain Python and served by its own web server."""

import contextlib
import functools
import http.server
import threading
import zipfile

import obstore
from zarr.core.buffer import cpu
from zarr.storage import LocalStore, MemoryStore, ObjectStore

import torchdata_insitu as tdi

LISTED = ("memory", "folder", "obstore folder", "obstore memory", "zip")
PLACES = (*LISTED, "http")


@contextlib.contextmanager
def placed(place, files, folder):
    """A store that holds these contents by key; `folder` is an empty one on disk."""
    if place == "memory":
        yield MemoryStore({key: cpu.Buffer.from_bytes(content) for key, content in files.items()})
    elif place == "obstore memory":
        inner = obstore.store.MemoryStore()
        for key, content in files.items():
            obstore.put(inner, key, content)
        yield ObjectStore(inner, read_only=True)
    elif place == "zip":
        with zipfile.ZipFile(folder / "store.zip", "w") as archive:
            for key, content in files.items():
                archive.writestr(key, content)
        with contextlib.closing(tdi.open_store(folder / "store.zip")) as store:
            yield store
    else:
        for key, content in files.items():
            path = folder / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        if place == "folder":
            yield LocalStore(folder, read_only=True)
        elif place == "obstore folder":
            yield ObjectStore(obstore.store.LocalStore(prefix=str(folder)), read_only=True)
        else:
            with web_server(folder) as url:
                yield tdi.open_store(url)


class _Handler(http.server.SimpleHTTPRequestHandler):
    def __init__(self, *args, listing_status, **options):
        self._listing_status = listing_status
        super().__init__(*args, **options)

    def do_PROPFIND(self):
        self.send_error(self._listing_status)

    def log_message(self, *_):
        pass


class _Server(http.server.ThreadingHTTPServer):
    request_queue_size = 512
    # Connections are for one request each, and the server waits for their threads.
    daemon_threads = False


@contextlib.contextmanager
def web_server(folder, listing_status=405):
    """The URL at which Python's own web server shows a folder; it knows no listing of keys.

    That is said by a status of its own, or by 501 as by Python's server, which obstore takes for an
    error that may pass: it asks five times.
    """
    options = {"directory": str(folder), "listing_status": listing_status}
    handler = functools.partial(_Handler, **options)
    with _Server(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
