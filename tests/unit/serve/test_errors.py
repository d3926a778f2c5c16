"""The error table: complete over both trees, in step with the runtime's own words, and its details."""

import pytest
from google.rpc import code_pb2, error_details_pb2, status_pb2

from ds4c_runtime import errors as runtime
from ds4c_serve import errors
from ds4c_serve.errors import RULES, is_expected, rule_for, status_of


def tree(root: type[Exception]) -> list[type[Exception]]:
    """The class and all that derive from it, as far as they are imported."""
    found = [root]
    for child in root.__subclasses__():
        found += tree(child)
    return found


def details(status: status_pb2.Status, kind):
    """The details of one kind, unpacked."""
    found = []
    for packed in status.details:
        message = kind()
        if packed.Unpack(message):
            found.append(message)
    return found


def test_every_class_of_the_tree_has_a_rule_of_its_own() -> None:
    ours = [cls for cls in tree(runtime.RuntimeFailure) if cls.__module__.startswith("ds4c_")]

    assert len(ours) >= 20
    assert [cls.__name__ for cls in ours if cls not in RULES] == []


@pytest.mark.parametrize("cls", [cls for cls in RULES if cls is not runtime.RuntimeFailure])
def test_rules_agree_with_what_the_runtime_says_of_itself(cls) -> None:
    rule = RULES[cls]

    assert (rule.code, rule.reason, rule.retry_ms is not None) == (cls.code, cls.reason, cls.retry)
    assert rule.code in code_pb2.Code.keys()


def test_a_class_without_a_rule_takes_the_one_of_its_base() -> None:
    class Special(runtime.QueueFullError):
        pass

    assert rule_for(Special("full")) is RULES[runtime.QueueFullError]


def test_error_info_always_comes_first_with_domain_and_metadata() -> None:
    status = status_of(runtime.StaleContinuationError("session moved", position=12, digest="ab"))

    assert status.code == code_pb2.ABORTED
    assert status.message == "session moved"
    (info,) = details(status, error_details_pb2.ErrorInfo)
    assert status.details[0].Is(error_details_pb2.ErrorInfo.DESCRIPTOR)
    assert (info.reason, info.domain) == ("CONTINUATION_STALE", "ds4c.dev")
    assert dict(info.metadata) == {"position": "12", "digest": "ab"}


def test_overload_says_when_to_retry_and_which_quota_failed() -> None:
    status = status_of(runtime.QueueFullError("queue full: expected at most 4 waiting, got 5"))

    (retry,) = details(status, error_details_pb2.RetryInfo)
    (quota,) = details(status, error_details_pb2.QuotaFailure)
    assert retry.retry_delay.ToMilliseconds() > 0
    assert quota.violations[0].subject == "queue"


def test_a_wrong_argument_names_its_field() -> None:
    status = status_of(runtime.InvalidRequestError("temperature: got nan", field="sampling.temperature"))

    (bad,) = details(status, error_details_pb2.BadRequest)
    assert bad.field_violations[0].field == "sampling.temperature"


def test_a_position_outside_names_its_field() -> None:
    status = status_of(runtime.PositionOutOfRangeError("pin", 9, 5, field="position"))

    assert status.code == code_pb2.OUT_OF_RANGE
    (bad,) = details(status, error_details_pb2.BadRequest)
    assert bad.field_violations[0].field == "position"


def test_an_unexpected_error_is_internal_and_its_text_stays_inside() -> None:
    error = KeyError("the prompt of a user")

    status = status_of(error)

    assert not is_expected(error)
    assert status.code == code_pb2.INTERNAL
    assert "prompt" not in status.message
    (info,) = details(status, error_details_pb2.ErrorInfo)
    assert info.reason == "INTERNAL"


def test_server_errors_are_in_the_same_tree() -> None:
    assert issubclass(errors.LoadingError, runtime.RuntimeFailure)
    assert RULES[errors.LoadingError].retry_ms is not None
