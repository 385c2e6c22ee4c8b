// Functions of recurrent cells, of numbers or of vectors of four: V is either, and U as many words.
fn minus(a: V, b: V) -> V {
    // The sign is turned in integer arithmetic: compilers take the difference of equals for 0, even of NaN.
    return a + bitcast<V>(bitcast<U>(b) ^ U(0x80000000u));
}
fn squash(x: V) -> V {
    return each_tanh(x);
}
fn gate(x: V) -> V {
    let e = each_exp(-abs(x));
    return select(V(1.0), e, x < V(0.0)) / (V(1.0) + e);
}
// The slope of the gate where it gives y.
fn gate_slope(y: V) -> V {
    return y * minus(V(1.0), y);
}
fn squash_slope(y: V) -> V {
    return minus(V(1.0), y * y);
}
fn positive(x: V) -> V {
    return select(x, V(0.0), x <= V(0.0));
}
fn where_positive(y: V, d: V) -> V {
    return select(d, V(0.0), y <= V(0.0));
}
// A gradient that has vanished is 0 from 2^-110 on: its products with weights above 2^-16 are normal numbers then, and with
// others a step takes a software renderer twenty times longer.
fn flushed(x: V) -> V {
    return select(x, V(0.0), abs(x) < V(7.7037198e-34f));
}
