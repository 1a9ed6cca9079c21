"""States with one field changed or cut off."""

import copy


def paths_of(state, prefix=()):
    """The keys that lead to each field, those of nested ones included."""
    for key, value in state.items():
        yield (*prefix, key)
        if isinstance(value, dict):
            yield from paths_of(value, (*prefix, key))


def edited(state, path, value):
    """A copy with another value of one field."""
    changed = copy.deepcopy(state)
    _parent(changed, path)[path[-1]] = value
    return changed


def cut(state, path):
    """A copy without one field."""
    changed = copy.deepcopy(state)
    del _parent(changed, path)[path[-1]]
    return changed


def _parent(state, path):
    for key in path[:-1]:
        state = state[key]
    return state
