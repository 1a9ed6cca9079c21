"""A thread that makes items, and what it shares with whoever takes them."""

import collections
import contextlib
import itertools
import sys
import threading

import pytest
from torchdata.nodes import BaseNode, IterableWrapper

import torchdata_insitu as tdi
from tests.contracts.watchdog import promptly
from tests.each_case import each_case
from tests.small_loaders import make_gather, shut_down
from torchdata_insitu.errors import ClosedError
from torchdata_insitu.gate import Gate
from torchdata_insitu.nodes import prefetch_channel
from torchdata_insitu.nodes.ordered_node import OrderedNode
from torchdata_insitu.nodes.prefetch_channel import PrefetchChannel
from torchdata_insitu.nodes.verbs import NodeWithVerbs

JOIN_S = 20


class Source(BaseNode):
    """Numbers; where there are gates, each item needs a permit."""

    def __init__(self, n=5, *, permits=None, error=None):
        super().__init__()
        self.n = n
        self.permits = permits
        self.entered = threading.Semaphore(0)
        self.error = error
        self.n_made = 0

    def reset(self, initial_state=None):
        super().reset(initial_state)

    def next(self):
        self.entered.release()
        if self.permits is not None:
            assert self.permits.acquire(timeout=JOIN_S)
        if self.n_made == self.n:
            raise self.error or StopIteration
        self.n_made += 1
        return self.n_made - 1

    def get_state(self):
        return {"made": self.n_made}


@contextlib.contextmanager
def running(source, n_ahead=2):
    """A channel over a source, stopped at the end."""
    source.reset()
    channel = PrefetchChannel(source, n_ahead)
    channel.start()
    try:
        yield channel
    finally:
        if source.permits is not None:
            source.permits.release(100)
        with promptly():
            channel.stop()
        assert not channel._thread.is_alive()


def rest(channel):
    return [item for item, _ in iter(channel.take, None)]


def threads_of(n, function):
    """Results of a function that several threads call at once."""
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(function()), daemon=True) for _ in range(n)
    ]
    for thread in threads:
        thread.start()
    return threads, results


def join(threads):
    for thread in threads:
        thread.join(JOIN_S)
    assert not any(thread.is_alive() for thread in threads)


@each_case("n_ahead, n", itertools.product([1, 2, 3, 50], [0, 1, 2, 7]))
def test_items_come_in_order_each_with_the_state_after_it(n_ahead, n):
    with running(Source(n), n_ahead) as channel:
        taken = list(iter(channel.take, None))
        assert taken == [(k, {"made": k + 1}) for k in range(n)]
        assert isinstance(channel.end, StopIteration)
        assert channel.take() is None


@each_case("n", [0, 1, 2, 5])
def test_the_last_items_come_before_the_end_or_the_error(n):
    for error in (None, OSError("gone")):
        with running(Source(n, error=error), n + 1) as channel:
            # The thread is over before anything is taken.
            channel._thread.join(JOIN_S)
            assert channel.end is not None
            assert rest(channel) == list(range(n))
            assert channel.end is error or isinstance(channel.end, StopIteration)


@each_case("n_ahead", [1, 2, 5])
def test_a_consumer_that_is_slower_or_faster_than_the_source_gets_every_item(n_ahead):
    permits = threading.Semaphore(0)
    source = Source(40, permits=permits)
    with running(source, n_ahead) as channel:
        taken = []
        # Faster: it waits for each item.
        for _ in range(15):
            permits.release()
            taken.append(channel.take()[0])
        # Slower: the queue is full whenever it takes one.
        permits.release(1000)
        for _ in range(15):
            while len(channel._items) < n_ahead:
                assert source.entered.acquire(timeout=JOIN_S)
            taken.append(channel.take()[0])
        assert taken + rest(channel) == list(range(40))


def test_it_makes_no_more_than_it_was_told():
    source = Source(30)
    with running(source, 3) as channel:
        for n_taken in range(1, 28):
            channel.take()
            assert source.n_made <= n_taken + 3


class Groups(Source, NodeWithVerbs):
    """Numbers, of which it makes several at a time."""

    def __init__(self, sizes, *, error=None):
        super().__init__(sum(sizes), error=error)
        self.sizes = sizes
        self.at_tenth = lambda: None

    def next(self):
        item = super().next()
        if self.n_made == 10:
            self.at_tenth()
        return item

    @property
    def n_ready(self):
        ends = itertools.accumulate(self.sizes)
        return next(end for end in ends if end >= self.n_made) - self.n_made

    def seek(self, cursor):
        raise NotImplementedError

    def interrupt(self):
        pass

    def shutdown(self):
        pass


@each_case(
    "sizes, n_ahead", itertools.product([[1], [3], [1, 4, 2], [2, 2, 2, 7], [16] * 3], [1, 2, 5])
)
def test_items_that_were_made_together_come_in_order_each_with_its_state(sizes, n_ahead):
    n = sum(sizes)
    for error in (None, OSError("gone")):
        with running(Groups(sizes, error=error), n_ahead) as channel:
            assert list(iter(channel.take, None)) == [(k, {"made": k + 1}) for k in range(n)]
            assert channel.end is error or isinstance(channel.end, StopIteration)


@each_case("n_ahead", [1, 2, 3])
def test_items_that_were_made_together_are_handed_over_together(n_ahead):
    opened = collections.Counter()
    is_full = threading.Event()
    wait, open_gate = Gate.wait, Gate.open

    def counted(gate):
        opened[threading.current_thread().name, gate] += 1
        open_gate(gate)

    def told(gate, timeout_s=-1):
        if threading.current_thread().name == "insitu-prefetch":
            is_full.set()
        return wait(gate, timeout_s)

    source = Groups([6] * 4)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Gate, "open", counted)
        patched.setattr(Gate, "wait", told)
        with running(source, n_ahead) as channel:
            for n_groups in range(1, 5):
                assert is_full.wait(JOIN_S)
                is_full.clear()
                assert source.n_made == 6 * n_groups
                assert opened["insitu-prefetch", channel._has_news] == n_groups
                while len(channel._items) > n_ahead:
                    channel.take()
                # The thread was left alone while there was enough.
                assert opened["MainThread", channel._has_room] == n_groups - 1
                channel.take()
            assert rest(channel)[-1:] == ([23] if n_ahead > 1 else [])


def test_a_thread_that_is_told_to_stop_takes_no_more_of_what_is_ready():
    source = Groups([100])
    source.reset()
    channel = PrefetchChannel(source, 2)
    source.at_tenth = channel.leave
    channel.start()
    channel._thread.join(JOIN_S)
    with promptly():
        channel.stop()
    assert source.n_made == 10


def test_of_consumers_that_wait_each_sees_the_end():
    permits = threading.Semaphore(0)
    with running(Source(0, permits=permits)) as channel:
        threads, results = threads_of(3, channel.take)
        permits.release()
        join(threads)
        assert results == [None] * 3
        assert channel.take() is None


def test_of_consumers_that_wait_each_sees_that_it_is_left():
    permits = threading.Semaphore(0)
    source = Source(5, permits=permits)
    with running(source) as channel:
        threads, results = threads_of(3, channel.take)
        assert source.entered.acquire(timeout=JOIN_S)
        assert channel.leave()
        join(threads)
        assert results == [None] * 3
        assert channel.end is None


def test_consumers_that_wait_share_the_items():
    with running(Source(300), 2) as channel:
        threads, results = threads_of(3, lambda: rest(channel))
        join(threads)
    assert sorted(itertools.chain(*results)) == list(range(300))
    for each in results:
        assert each == sorted(each)


def test_items_are_not_kept_by_the_thread():
    class Item:
        pass

    class Items(Source):
        def next(self):
            super().next()
            return Item()

    source = Items(9, permits=threading.Semaphore(1))
    with running(source, 2) as channel:
        item, _ = channel.take()
        # It is inside the source for the next one.
        for _ in range(2):
            assert source.entered.acquire(timeout=JOIN_S)
        # The name here, the caller's argument.
        assert sys.getrefcount(item) == 2


@pytest.mark.parametrize("n_stopping", [1, 2, 5])
def test_threads_that_stop_it_at_once_return_as_soon_as_it_has_left(n_stopping, monkeypatch):
    """None of them waits until it looks again by itself, which would take for ever here."""
    monkeypatch.setattr(prefetch_channel, "_STUCK_S", 10_000.0)
    permits = threading.Semaphore(0)
    source = Source(5, permits=permits)
    source.reset()
    channel = PrefetchChannel(source, 2)
    channel.start()
    assert source.entered.acquire(timeout=JOIN_S)
    stopping, _ = threads_of(n_stopping, channel.stop)
    while not channel.is_stopping:
        assert stopping[0].is_alive()
    permits.release()
    join(stopping)
    assert not channel._thread.is_alive()
    assert source.n_made == 1
    with promptly():
        channel.stop()
        assert channel.take() is None


def test_a_thread_that_waits_for_room_leaves_at_once():
    source = Source(9)
    with running(source, 2) as channel:
        while len(channel._items) < 2:
            assert source.entered.acquire(timeout=JOIN_S)
        with promptly():
            channel.stop()
        assert source.n_made == 2
        assert channel.take() is None


def test_a_thread_that_was_told_to_stop_before_it_started_leaves_the_source_alone():
    source = Source()
    source.reset()
    channel = PrefetchChannel(source, 2)
    with promptly():
        channel.stop()
        channel.start()
        channel._thread.join(JOIN_S)
        assert source.n_made == 0
        assert not source.entered.acquire(blocking=False)
        assert channel.take() is None


def test_a_channel_that_never_started_is_stopped_at_once():
    with promptly():
        PrefetchChannel(Source(), 2).stop()


def test_the_thread_itself_may_stop_it():
    class Stops(Source):
        def next(self):
            channel.stop()
            return super().next()

    with running(Stops()) as channel, promptly():
        channel._thread.join(JOIN_S)
        assert rest(channel) in ([], [0])


class InterruptsAt:
    """Raises `KeyboardInterrupt` at the n-th line that functions of the channel begin, once."""

    def __init__(self, number, *functions):
        self._left = number
        self._codes = {function.__code__ for function in functions}
        self.is_done = False

    def __enter__(self):
        self._before = sys.gettrace()
        sys.settrace(self._call)
        return self

    def __exit__(self, *_):
        sys.settrace(self._before)

    def _call(self, frame, event, _):
        return self._line if event == "call" and frame.f_code in self._codes else None

    def _line(self, frame, event, _):
        del frame
        if event == "line" and not self.is_done:
            self._left -= 1
            if self._left < 0:
                self.is_done = True
                sys.settrace(None)
                raise KeyboardInterrupt
        return self._line


def interrupted_at_each_line(*functions):
    """An interrupt at the first line, at the second and so on, until there is none left."""
    for number in itertools.count():
        interrupt = InterruptsAt(number, *functions)
        yield interrupt
        if not interrupt.is_done:
            assert number > 3
            return


@pytest.mark.parametrize("n_ahead", [1, 2, 3])
def test_an_interrupt_at_any_line_of_a_take_leaves_the_rest_to_be_taken(n_ahead):
    for interrupt in interrupted_at_each_line(PrefetchChannel.take, Gate.open, Gate.wait):
        with running(Source(8), n_ahead) as channel, promptly():
            taken = [channel.take()[0]]
            with interrupt, contextlib.suppress(KeyboardInterrupt):
                taken.append(channel.take()[0])
            taken += rest(channel)
            # The item that was on its way may be gone, but none further.
            assert taken in (list(range(8)), [0, *range(2, 8)])


@pytest.mark.parametrize("n_before", [0, 2])
def test_an_interrupt_at_any_line_of_next_loses_nothing_in_silence(n_before):
    """Where an item was on its way, the node says so, and its state is the place of that item."""
    for interrupt in interrupted_at_each_line(
        tdi.Prefetcher.next,
        tdi.Prefetcher._start_thread,
        PrefetchChannel.start,
        PrefetchChannel.take,
        PrefetchChannel._pop,
        Gate.open,
        Gate.wait,
    ):
        node = tdi.Prefetcher(IterableWrapper(range(8)), 2)
        with promptly(5.0), shut_down(node):
            items = [next(node) for _ in range(n_before)]
            with interrupt, contextlib.suppress(KeyboardInterrupt):
                items.append(next(node))
            try:
                items.append(next(node))
            except ClosedError:
                node.reset(node.state_dict())
            assert items + list(node) == list(range(8))


@pytest.mark.parametrize("n_before", [0, 2])
def test_an_interrupt_at_any_line_of_a_node_loses_nothing_in_silence(n_before):
    expected = [batch["sample_index"].tolist() for batch in make_gather()]
    for interrupt in interrupted_at_each_line(
        OrderedNode.next, tdi.GatherNode._make, tdi.GatherNode._cursor_after
    ):
        node = make_gather()
        with shut_down(node), promptly(5.0):
            batches = [next(node) for _ in range(n_before)]
            with interrupt, contextlib.suppress(KeyboardInterrupt):
                batches.append(next(node))
            try:
                batches.append(next(node))
            except ClosedError:
                node.reset(node.state_dict())
            batches += list(node)
            assert [batch["sample_index"].tolist() for batch in batches] == expected


def test_an_interrupt_at_any_line_of_a_stop_leaves_it_to_be_stopped():
    for interrupt in interrupted_at_each_line(
        PrefetchChannel.stop, PrefetchChannel.leave, Gate.open, Gate.wait
    ):
        source = Source(8)
        with running(source) as channel, promptly(5.0):
            channel.take()
            with interrupt, contextlib.suppress(KeyboardInterrupt):
                channel.stop()
            channel.stop()
            assert not channel._thread.is_alive()
            made = source.n_made
            assert channel.take() is None
            assert source.n_made == made


def test_an_interrupt_of_a_wait_for_an_item_leaves_the_item(monkeypatch):
    wait = Gate.wait
    permits = threading.Semaphore(0)
    with running(Source(3, permits=permits)) as channel:
        for is_late in (False, True):

            def interrupted(gate, timeout_s=-1, *, is_late=is_late):
                if gate is not channel._has_news:
                    return wait(gate, timeout_s)
                if is_late:
                    # As it comes back from waiting: the news is taken, and nobody has looked.
                    permits.release()
                    assert wait(gate, timeout_s)
                raise KeyboardInterrupt

            with monkeypatch.context() as patched:
                patched.setattr(Gate, "wait", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    channel.take()
        permits.release(3)
        with promptly():
            assert rest(channel) == [0, 1, 2]


def test_an_interrupt_of_the_wait_for_the_thread_lets_it_be_waited_for_again(monkeypatch):
    wait = Gate.wait
    permits = threading.Semaphore(0)
    source = Source(3, permits=permits)
    with running(source) as channel:
        assert source.entered.acquire(timeout=JOIN_S)

        def interrupted(gate, timeout_s=-1):
            if gate is channel._has_left:
                raise KeyboardInterrupt
            return wait(gate, timeout_s)

        with monkeypatch.context() as patched:
            patched.setattr(Gate, "wait", interrupted)
            for _ in range(2):
                with pytest.raises(KeyboardInterrupt):
                    channel.stop()
        assert channel._thread.is_alive()
        permits.release()
        with promptly():
            channel.stop()
        assert not channel._thread.is_alive()
