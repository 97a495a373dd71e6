// Python's view of what is done to molecules in periodic cells, and of fits.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include "kernels.h"

namespace py = pybind11;
using Array = py::array;

namespace {

mdio::Output output(Array& positions) {
    return {static_cast<char*>(positions.mutable_data()), positions.shape(1),
            positions.strides(0)};
}

template <class Number>
const Number* numbers(const Array& array) {
    return static_cast<const Number*>(array.data());
}

void make_whole(Array positions, const Array& vectors, const Array& links) {
    const mdio::Output to = output(positions);
    const py::ssize_t n_frames = positions.shape(0), n = links.shape(0);
    const auto* cells = numbers<double>(vectors);
    const auto* pairs = numbers<int64_t>(links);
    py::gil_scoped_release unlocked;
    mdio::make_whole(to, n_frames, cells, pairs, n);
}

// What is done to molecules: put_in_cell, gather.
using Mover = void (*)(const mdio::Output&, int64_t, const double*, const mdio::Molecules&);

template <Mover mover>
void with_molecules(Array positions, const Array& vectors, const Array& atoms,
                    const Array& starts, const Array& weights) {
    const mdio::Output to = output(positions);
    const py::ssize_t n_frames = positions.shape(0);
    const auto* cells = numbers<double>(vectors);
    const mdio::Molecules molecules = {numbers<int64_t>(atoms), numbers<int64_t>(starts),
                                       numbers<double>(weights), starts.shape(0) - 1};
    py::gil_scoped_release unlocked;
    mover(to, n_frames, cells, molecules);
}

void centre(Array positions, const Array& vectors, const Array& picked) {
    const mdio::Output to = output(positions);
    const py::ssize_t n_frames = positions.shape(0);
    const auto* cells = numbers<double>(vectors);
    const mdio::Indices atoms = {numbers<int64_t>(picked), picked.shape(0)};
    py::gil_scoped_release unlocked;
    mdio::centre(to, n_frames, cells, atoms);
}

template <decltype(mdio::follow) way>
void follow(Array positions, const Array& vectors, Array last, Array shifts, bool known,
            bool apply) {
    const mdio::Output to = output(positions);
    const py::ssize_t n_frames = positions.shape(0);
    const auto* cells = numbers<double>(vectors);
    auto* before = static_cast<double*>(last.mutable_data());
    auto* jumps = static_cast<int64_t*>(shifts.mutable_data());
    py::gil_scoped_release unlocked;
    way(to, n_frames, cells, before, jumps, known, apply);
}

void fit_sums(const Array& positions, const Array& picked, const Array& reference, Array out) {
    const mdio::Frames from = {static_cast<const char*>(positions.data()), positions.shape(0),
                               positions.shape(1), positions.strides(0)};
    const mdio::Indices atoms = {numbers<int64_t>(picked), picked.shape(0)};
    const auto* fixed = numbers<double>(reference);
    auto* sums = static_cast<double*>(out.mutable_data());
    py::gil_scoped_release unlocked;
    mdio::fit_sums(from, atoms, fixed, sums);
}

void turn(Array vectors, const Array& rotations, const Array& from, const Array& to) {
    const mdio::Output rows = output(vectors);
    const py::ssize_t n_frames = vectors.shape(0);
    const auto *matrices = numbers<double>(rotations), *begin = numbers<double>(from),
               *end = numbers<double>(to);
    py::gil_scoped_release unlocked;
    mdio::turn(rows, n_frames, matrices, begin, end);
}

}  // namespace

void add_periodic(py::module_& module) {
    module.def("make_whole", make_whole);
    module.def("put_in_cell", with_molecules<mdio::put_in_cell>);
    module.def("gather", with_molecules<mdio::gather>);
    module.def("centre", centre);
    module.def("follow", follow<mdio::follow>);
    module.def("follow_steps", follow<mdio::follow_steps>);
    module.def("fit_sums", fit_sums);
    module.def("turn", turn);
}
