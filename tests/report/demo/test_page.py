import torch

from pidformer.report.demo.page import COUNT, Answers, chosen


def answers(before, after):
    return Answers(torch.zeros(len(before), 1, 8, 8), before, after)


def test_digits_on_which_either_twin_is_misled_come_first_in_their_order():
    labels = [1] * 8
    right, pid = [1] * 8, [1, 1, 1, 7, 1, 1, 1, 1]
    found = {
        "softmax": answers(right, [1, 1, 1, 1, 1, 9, 1, 1]),
        "pid": answers(right, pid),
        "softmax_no_residual": answers(right, [0] * 8),
    }
    assert chosen(labels, found) == [3, 5, 0, 1, 2] and COUNT == 5


def test_a_digit_that_was_wrong_before_is_not_misled():
    found = {"softmax": answers([1, 2], [1, 3]), "pid": answers([1, 2], [1, 2])}
    assert chosen([1, 1], found) == [0, 1]
