"""Code is read alike in all versions of Python, without Keras.

`python -m pytest --noconftest tests/backend/test_bytecode.py`
"""

from __future__ import annotations

from typing import Any

from keras_preempt.backend.bytecode import instructions, instructions_within, names_in, stored_attributes
from keras_preempt.backend.user_code import attributes, enclosed, is_a

LIMIT = 3


def does(function: Any, *kinds: str) -> list[tuple[str, str]]:
    """What a function does, as far as it is of these kinds."""
    return [(step.does, step.name) for step in instructions_within(function.__code__) if step.does in kinds]


def adds_up(a: Any, b: Any) -> Any:
    c, d = a, b
    c.total = d.each(a, b)
    return c


def test_two_local_variables_at_once_are_two_steps() -> None:
    assert does(adds_up, "LOAD_FAST", "STORE_FAST") == [
        *[("LOAD_FAST", "a"), ("LOAD_FAST", "b")],
        *[("STORE_FAST", name) for name in names_stored(adds_up)],
        *[("LOAD_FAST", name) for name in ("d", "a", "b", "c", "c")],
    ]


def names_stored(function: Any) -> list[str]:
    return [step.name for step in instructions(function.__code__) if step.does == "STORE_FAST"]


def test_methods_and_attributes_are_loaded_in_one_way() -> None:
    def loads(one: Any) -> Any:
        return one.other.method(LIMIT, one[1:2])

    assert does(loads, "LOAD_ATTR", "LOAD_GLOBAL", "LOAD_METHOD") == [
        *[("LOAD_ATTR", "other"), ("LOAD_ATTR", "method"), ("LOAD_GLOBAL", "LIMIT")],
    ]


class Base:
    size = 1

    def grow(self) -> None:
        """Does nothing."""


class Derived(Base):
    def grow(self) -> None:
        super().grow()


def test_a_method_of_the_base_class_is_loaded_like_another() -> None:
    assert ("LOAD_ATTR", "grow") in does(Derived.grow, "LOAD_ATTR")


def test_a_slice_and_an_item_are_set_in_one_way() -> None:
    def sets(one: Any) -> None:
        one[0] = one[1]
        one[1:2] = one

    kinds = [kind for kind, _ in does(sets, "BINARY_SUBSCR", "STORE_SUBSCR", "STORE_SLICE")]
    assert kinds == ["BINARY_SUBSCR", "STORE_SUBSCR", "STORE_SUBSCR"]


def test_a_variable_that_an_inner_function_uses_is_loaded_only_where_its_value_is() -> None:
    def outer(first: Any, second: Any) -> Any:
        def within() -> Any:
            return first, second

        return within

    assert does(outer, "LOAD_FAST") == [("LOAD_FAST", "within")]
    assert does(outer, "LOAD_DEREF") == [("LOAD_DEREF", "first"), ("LOAD_DEREF", "second")]


def test_every_step_has_the_line_of_its_source() -> None:
    first = adds_up.__code__.co_firstlineno
    lines = {step.line - first for step in instructions(adds_up.__code__)}
    assert lines - {0} == {1, 2, 3}


def test_the_stack_is_empty_after_each_statement() -> None:
    def calls(one: Any, two: Any) -> None:
        one.rows[two.name(1, key=one)] = [two, *one]
        one.x, one.y = two.y[1:2], two(one)(two)
        one.z = two.each(()), two in ("a", "b")
        one[1:2] = f"{one} {two!r:>3}"

    depth, found = 0, []
    for step in instructions(calls.__code__):
        depth += step.adds
        found.append((step.line, depth))
    ends = dict(found)
    assert list(ends.values())[:-1] == [0] * (len(ends) - 1)


def test_names_are_those_of_inner_code_and_of_texts() -> None:
    def names(one: Any) -> Any:
        class Inner:
            def method(self) -> Any:
                return self.deep

        return [getattr(each, "by_name") for each in one.every], Inner, "no name"  # noqa: B009

    found = names_in(names.__code__)
    assert {"every", "by_name", "deep", "getattr"} <= found
    assert "no name" not in found
    with_classes, without = (
        {step.name for step in instructions_within(names.__code__, classes=classes)}
        for classes in (True, False)
    )
    assert "deep" in with_classes
    assert "deep" not in without


def test_attributes_that_are_set_are_found_in_inner_code() -> None:
    def sets(one: Any) -> Any:
        one.a = one.b
        one.c += 1
        return lambda two: setattr(two, "d", 1) or [two for two.e in one]

    assert stored_attributes(sets.__code__) == {"a", "c", "e"}


def test_objects_are_not_asked() -> None:
    class Asked:
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(name)

    asked = Asked()
    object.__setattr__(asked, "held", 1)
    assert attributes(asked) == {"held": 1}
    assert attributes(1) == {}
    assert is_a(asked, Asked, int)
    assert not is_a(asked, str)


def test_variables_of_an_enclosing_function_are_found_unless_they_are_not_set_yet() -> None:
    held = 1

    def uses() -> Any:
        return held, later

    assert enclosed(uses) == {"held": 1}
    later = 2
    assert enclosed(uses) == {"held": 1, "later": 2}
