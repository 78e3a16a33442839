// Power iteration with gemv.hpp.
// c++ -std=c++17 quickstart.cpp $(pkg-config --cflags --libs gemv)
#include <gemv.hpp>

#include <cmath>
#include <iostream>
#include <vector>

int main() try {
    gemv::device device; // or gemv::device("cuda:0")
    const std::vector<float> a{2, 1, 1, 3};
    std::vector<float> x{1, 1}, y(2);
    const auto matrix = device.upload(gemv::matrix(a.data(), 2, 2)); // once
    for (int step = 0; step < 20; step++) {
        device.mv(matrix.array(), gemv::vector(x), gemv::vector(y));
        const float norm = std::hypot(y[0], y[1]);
        for (int i = 0; i < 2; i++) x[i] = y[i] / norm;
    }
    std::cout << "on " << device.id() << ": " << x[0] << " " << x[1] << "\n";
    // What does not fit is an exception with a sentence.
    try {
        device.mv(gemv::matrix(a.data(), 1, 4), gemv::vector(x), gemv::vector(y));
        return 1;
    } catch (const gemv::error &e) {
        std::cout << e.what() << "\n";
    }
    return 0;
} catch (const gemv::error &e) {
    std::cerr << e.what() << "\n";
    return 1;
}
