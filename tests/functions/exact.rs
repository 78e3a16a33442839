//! Functions in twice the digits of f64: pairs of numbers whose sum is meant. What the programs are measured against.

use std::f64::consts::LN_2;

use gemv::Function;

/// `hi + lo`, with `lo` below half a unit of `hi`.
#[derive(Debug, Clone, Copy)]
pub struct Wide {
    pub hi: f64,
    pub lo: f64,
}

const LN2: Wide = Wide { hi: LN_2, lo: 2.319_046_813_846_299_6e-17 };
/// `√(2π)`
const ROOT_2PI: Wide = Wide { hi: 2.506_628_274_631_000_7, lo: -1.832_857_998_045_916_7e-16 };

fn wide(hi: f64) -> Wide {
    Wide { hi, lo: 0.0 }
}

fn sum(a: f64, b: f64) -> Wide {
    let hi = a + b;
    let part = hi - a;
    Wide { hi, lo: (a - (hi - part)) + (b - part) }
}

impl Wide {
    fn add(self, b: Wide) -> Wide {
        let (s, t) = (sum(self.hi, b.hi), sum(self.lo, b.lo));
        let s = sum(s.hi, s.lo + t.hi);
        sum(s.hi, s.lo + t.lo)
    }

    fn neg(self) -> Wide {
        Wide { hi: -self.hi, lo: -self.lo }
    }

    fn mul(self, b: Wide) -> Wide {
        let hi = self.hi * b.hi;
        let lo = self.hi.mul_add(b.hi, -hi) + (self.hi * b.lo + self.lo * b.hi);
        sum(hi, lo)
    }

    fn div(self, b: Wide) -> Wide {
        let q = self.hi / b.hi;
        let rest = self.add(b.mul(wide(q)).neg());
        let r = rest.hi / b.hi;
        let rest = rest.add(b.mul(wide(r)).neg());
        sum(q, r).add(wide(rest.hi / b.hi))
    }

    /// Times a power of two, exactly where the result is no subnormal number.
    fn scaled(self, k: i32) -> Wide {
        let (a, b) = (k / 2, k - k / 2);
        let power = |k: i32| f64::from_bits(((1023 + k) as u64) << 52);
        Wide { hi: self.hi * power(a) * power(b), lo: self.lo * power(a) * power(b) }
    }

    /// `e^x - 1` for `|x| < 0.6`.
    fn exp_less_one(self) -> Wide {
        let (mut term, mut all) = (self, self);
        for n in 2..40 {
            term = term.mul(self).div(wide(f64::from(n)));
            all = all.add(term);
        }
        all
    }

    /// A number and a power of two, whose product is `e^x`.
    fn exp(self) -> (Wide, i32) {
        // Beyond, it is 0 or infinite for every type.
        let of = if self.hi.abs() > 2000.0 { wide(self.hi.clamp(-2000.0, 2000.0)) } else { self };
        let k = (of.hi / LN_2).round();
        let r = of.add(LN2.mul(wide(k)).neg());
        (r.exp_less_one().add(wide(1.0)), k as i32)
    }

    fn ln(self) -> Wide {
        let f = self.add(wide(-1.0));
        if f.hi.abs() < 0.2 {
            let s = f.div(f.add(wide(2.0)));
            let (square, mut power, mut all) = (s.mul(s), s, s);
            for n in (3..70).step_by(2) {
                power = power.mul(square);
                all = all.add(power.div(wide(f64::from(n))));
            }
            return all.add(all);
        }
        // A step of Newton's, to the third order.
        let near = self.hi.ln();
        let (e, k) = wide(-near).exp();
        let e = self.mul(e).scaled(k);
        let step = e.add(wide(-1.0)).div(e.add(wide(1.0)));
        wide(near).add(step.add(step))
    }

    /// A number and a power of two, whose product is `Φ(-x)`; `x` is not negative.
    fn below(self) -> (Wide, i32) {
        let (density, k) = self.mul(self).mul(wide(-0.5)).exp();
        let density = density.div(ROOT_2PI);
        if self.hi < 4.0 {
            let (mut term, mut all, square) = (self, self, self.mul(self));
            for n in (3..200).step_by(2) {
                term = term.mul(square).div(wide(f64::from(n)));
                all = all.add(term);
            }
            return (wide(0.5).add(density.scaled(k).mul(all).neg()), 0);
        }
        let mut fraction = self;
        for n in (1..200).rev() {
            fraction = self.add(wide(f64::from(n)).div(fraction));
        }
        (density.div(fraction), k)
    }
}

/// A function of a finite number, as a number and a power of two to multiply it with.
pub fn function(of: Function, x: f64) -> (Wide, i32) {
    let one = wide(1.0);
    let negative = x < 0.0;
    // x / (1 + e^-v), with e^-|v| as a number and a power.
    let logistic = |n: Wide, v: Wide| {
        let (e, k) = if v.hi < 0.0 { v.exp() } else { v.neg().exp() };
        let divisor = one.add(e.scaled(k.max(-900)));
        match v.hi < 0.0 {
            true => (n.mul(e).div(divisor), k),
            false => (n.div(divisor), 0),
        }
    };
    match of {
        Function::Abs => (wide(x.abs()), 0),
        Function::Recip => (one.div(wide(x)), 0),
        Function::Relu => (wide(if negative { 0.0 } else { x }), 0),
        Function::Exp => wide(x).exp(),
        Function::Ln => (wide(x).ln(), 0),
        Function::Tanh => {
            let twice = wide(2.0 * x.abs().min(30.0));
            let t = match twice.hi < 0.5 {
                true => twice.exp_less_one(),
                false => {
                    let (e, k) = twice.exp();
                    e.scaled(k).add(wide(-1.0))
                }
            };
            let t = t.div(t.add(wide(2.0)));
            (if negative { t.neg() } else { t }, 0)
        }
        Function::Sigmoid => logistic(one, wide(x)),
        Function::Silu => logistic(wide(x), wide(x)),
        Function::Gelu => {
            let (below, k) = wide(x.abs().min(1e3)).below();
            match negative {
                true => (wide(x).mul(below), k),
                false => (wide(x).mul(one.add(below.scaled(k.max(-900)).neg())), 0),
            }
        }
        Function::GeluTanh => {
            // 0.044715 as it is written.
            let c = wide(44_715.0).div(wide(1e6));
            let near = wide(x.clamp(-1e3, 1e3));
            let cube = near.mul(near).mul(near).mul(c);
            // 2 √(2/π) = 4 / √(2π).
            let v = near.add(cube).mul(wide(4.0).div(ROOT_2PI));
            logistic(wide(x), v)
        }
    }
}
