//! Public keys as certificates and requests for them carry them, and signatures by their holders.
//!
//! ring verifies what it can. It has no P-521, no SHA-512 on other curves, and takes one length of salt in RSA-PSS where
//! upstream's kubelet uses the longest: these are computed here. Only public values are, so time need not be constant.

use ring::{digest, signature};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::num_bigint::BigUint;
use x509_parser::prelude::FromDer;
use x509_parser::public_key::RSAPublicKey;
use x509_parser::x509::{AlgorithmIdentifier, SubjectPublicKeyInfo};

#[derive(Debug, PartialEq, Eq)]
pub(super) enum PublicKey {
    Ed25519(Vec<u8>),
    /// A point of the curve, uncompressed.
    Ecdsa(&'static Curve, Vec<u8>),
    /// A curve of a known name that pods get no certificates for.
    P224,
    Rsa {
        modulus: BigUint,
        exponent: BigUint,
    },
    /// A known kind that signs nothing here (DSA, X25519).
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum KeyError {
    #[error("the public key cannot be read")]
    Unreadable,
    #[error("the kind of the public key is not known")]
    UnknownKind,
}

impl PublicKey {
    /// Reads a key in PKIX form, and nothing behind it.
    pub(super) fn from_der(der: &[u8]) -> Result<Self, KeyError> {
        match SubjectPublicKeyInfo::from_der(der) {
            Ok(([], info)) => Self::of(&info),
            _ => Err(KeyError::Unreadable),
        }
    }

    pub(super) fn of(info: &SubjectPublicKeyInfo<'_>) -> Result<Self, KeyError> {
        let data: &[u8] = &info.subject_public_key.data;
        let read = match info.algorithm.algorithm.to_id_string().as_str() {
            "1.3.101.112" => ed25519(&info.algorithm, data),
            "1.2.840.10045.2.1" => ecdsa(&info.algorithm, data),
            "1.2.840.113549.1.1.1" => rsa(&info.algorithm, data),
            "1.2.840.10040.4.1" | "1.3.101.110" => Some(Self::Other),
            _ => return Err(KeyError::UnknownKind),
        };
        read.ok_or(KeyError::Unreadable)
    }

    /// Whether `signature` proves that who sent `message` holds the key: Ed25519, ECDSA of the SHA-256, or RSA-PSS of it.
    pub(super) fn is_proven_by(&self, message: &[u8], signature: &[u8]) -> bool {
        match self {
            Self::Ed25519(key) => by_ring(&signature::ED25519, key, message, signature),
            Self::Ecdsa(curve, point) => curve.verify(point, &digest::SHA256, message, signature),
            Self::Rsa { modulus, exponent } => pss(modulus, exponent, message, signature),
            Self::P224 | Self::Other => false,
        }
    }

    /// Whether a request for a certificate, which has this key in it, is signed with it.
    pub(super) fn has_signed(&self, request: &X509CertificationRequest<'_>) -> bool {
        let (message, signature) = (request.certification_request_info.raw, &request.signature_value.data);
        let Self::Ecdsa(curve, point) = self else { return request.verify_signature().is_ok() };
        match request.signature_algorithm.algorithm.to_id_string().as_str() {
            "1.2.840.10045.4.3.2" => curve.verify(point, &digest::SHA256, message, signature),
            "1.2.840.10045.4.3.3" => curve.verify(point, &digest::SHA384, message, signature),
            "1.2.840.10045.4.3.4" => curve.verify(point, &digest::SHA512, message, signature),
            _ => false,
        }
    }
}

fn ed25519(algorithm: &AlgorithmIdentifier<'_>, data: &[u8]) -> Option<PublicKey> {
    (algorithm.parameters.is_none() && data.len() == 32).then(|| PublicKey::Ed25519(data.to_vec()))
}

fn ecdsa(algorithm: &AlgorithmIdentifier<'_>, data: &[u8]) -> Option<PublicKey> {
    let name = algorithm.parameters.as_ref()?.as_oid().ok()?.to_id_string();
    if name == "1.3.132.0.33" {
        return Some(PublicKey::P224);
    }
    let curve = CURVES.iter().find(|curve| curve.id == name)?;
    curve.point(data)?;
    Some(PublicKey::Ecdsa(curve, data.to_vec()))
}

fn rsa(algorithm: &AlgorithmIdentifier<'_>, data: &[u8]) -> Option<PublicKey> {
    const NULL: u32 = 5;
    let is_null = algorithm.parameters.as_ref().is_some_and(|any| any.tag().0 == NULL && any.data.is_empty());
    let (rest, key) = RSAPublicKey::from_der(data).ok()?;
    let positive = |bytes: &[u8]| {
        let is_negative = bytes.first().is_none_or(|first| first & 0x80 != 0);
        Some(BigUint::from_bytes_be(bytes)).filter(|number| !is_negative && number.bits() > 0)
    };
    let (modulus, exponent) = (positive(key.modulus)?, positive(key.exponent)?);
    (is_null && rest.is_empty()).then_some(PublicKey::Rsa { modulus, exponent })
}

fn by_ring(
    algorithm: &'static dyn signature::VerificationAlgorithm,
    key: &[u8],
    message: &[u8],
    signature: &[u8],
) -> bool {
    signature::UnparsedPublicKey::new(algorithm, key).verify(message, signature).is_ok()
}

/// RSA-PSS with SHA-256 and a salt of any length (RFC 8017, 8.1.2 and 9.1.2).
fn pss(modulus: &BigUint, exponent: &BigUint, message: &[u8], signature: &[u8]) -> bool {
    const HASH: usize = 32;
    const TRAILER: u8 = 0xbc;
    let number = BigUint::from_bytes_be(signature);
    let is_sound = modulus.bit(0) && exponent.bit(0) && (2..=31).contains(&exponent.bits());
    if !is_sound || signature.len() as u64 != modulus.bits().div_ceil(8) || number >= *modulus {
        return false;
    }
    let bits = modulus.bits() - 1;
    let encoded = number.modpow(exponent, modulus).to_bytes_be();
    let Ok(length) = usize::try_from(bits.div_ceil(8)) else { return false };
    let Some(padding) = length.checked_sub(encoded.len()) else { return false };
    let encoded = [vec![0; padding], encoded].concat();
    let Some((&TRAILER, encoded)) = encoded.split_last() else { return false };
    let Some(split) = encoded.len().checked_sub(HASH) else { return false };
    let (masked, hash) = encoded.split_at(split);
    // The bits above those that a number below the modulus has.
    let Some((&first, _)) = masked.split_first() else { return false };
    let unused = (length as u64 * 8 - bits) as u32;
    let mask = u8::MAX.checked_shr(unused).unwrap_or(0);
    if first & !mask != 0 {
        return false;
    }
    let mut block: Vec<u8> = masked.iter().zip(mgf1(hash, masked.len())).map(|(byte, mask)| byte ^ mask).collect();
    block[0] &= mask;
    let Some(one) = block.iter().position(|byte| *byte != 0).filter(|at| block[*at] == 1) else { return false };
    let hashed = digest::digest(&digest::SHA256, message);
    let salted = [&[0_u8; 8][..], hashed.as_ref(), &block[one + 1..]].concat();
    digest::digest(&digest::SHA256, &salted).as_ref() == hash
}

/// `length` bytes that follow from `seed` (RFC 8017, B.2.1).
fn mgf1(seed: &[u8], length: usize) -> Vec<u8> {
    let mut mask = Vec::with_capacity(length + 32);
    for counter in 0_u32.. {
        if mask.len() >= length {
            break;
        }
        let block = [seed, &counter.to_be_bytes()].concat();
        mask.extend_from_slice(digest::digest(&digest::SHA256, &block).as_ref());
    }
    mask.truncate(length);
    mask
}

/// y² = x³ - 3x + b over a prime field, with a generator of prime order; numbers in hexadecimal digits.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Curve {
    id: &'static str,
    prime: &'static str,
    b: &'static str,
    order: &'static str,
    generator: (&'static str, &'static str),
}

/// P-256, P-384 and P-521 (FIPS 186).
static CURVES: [Curve; 3] = [
    Curve {
        id: "1.2.840.10045.3.1.7",
        prime: "ffffffff00000001000000000000000000000000ffffffffffffffffffffffff",
        b: "5ac635d8aa3a93e7b3ebbd55769886bc651d06b0cc53b0f63bce3c3e27d2604b",
        order: "ffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551",
        generator: (
            "6b17d1f2e12c4247f8bce6e563a440f277037d812deb33a0f4a13945d898c296",
            "4fe342e2fe1a7f9b8ee7eb4a7c0f9e162bce33576b315ececbb6406837bf51f5",
        ),
    },
    Curve {
        id: "1.3.132.0.34",
        prime: "fffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffeffffffff0000000000000000ffffffff",
        b: "b3312fa7e23ee7e4988e056be3f82d19181d9c6efe8141120314088f5013875ac656398d8a2ed19d2a85c8edd3ec2aef",
        order: "ffffffffffffffffffffffffffffffffffffffffffffffffc7634d81f4372ddf581a0db248b0a77aecec196accc52973",
        generator: (
            "aa87ca22be8b05378eb1c71ef320ad746e1d3b628ba79b9859f741e082542a385502f25dbf55296c3a545e3872760ab7",
            "3617de4a96262c6f5d9e98bf9292dc29f8f41dbd289a147ce9da3113b5f0b8c00a60b1ce1d7e819d7a431d7c90ea0e5f",
        ),
    },
    Curve {
        id: "1.3.132.0.35",
        prime: "01ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
        b: "0051953eb9618e1c9a1f929a21a0b68540eea2da725b99b315f3b8b489918ef109e156193951ec7e937b1652c0bd3bb1bf073573df883d2c34f1ef451fd46b503f00",
        order: "01fffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffa51868783bf2f966b7fcc0148f709a5d03bb5c9b8899c47aebb6fb71e91386409",
        generator: (
            "00c6858e06b70404e9cd9e3ecb662395b4429c648139053fb521f828af606b4d3dbaa14b5e77efe75928fe1dc127a2ffa8de3348b3c1856a429bf97e7e31c2e5bd66",
            "011839296a789a3bc0045c8a5fb42c7d1bd998f54449579b446817afbd17273e662c97ee72995ef42640c550b9013fad0761353c7086a272c24088be94769fd16650",
        ),
    },
];

impl Curve {
    /// The coordinates of an uncompressed point, if it is on the curve.
    fn point(&self, data: &[u8]) -> Option<(BigUint, BigUint)> {
        let Some((4, coordinates)) = data.split_first() else { return None };
        let prime = number(self.prime);
        let size = self.prime.len() / 2;
        let (x, y) = coordinates.split_at_checked(size).filter(|(_, y)| y.len() == size)?;
        let (x, y) = (BigUint::from_bytes_be(x), BigUint::from_bytes_be(y));
        if x >= prime || y >= prime {
            return None;
        }
        let minus_three = &prime - 3_u32;
        let right = (&x * &x * &x + &x * minus_three + number(self.b)) % &prime;
        (&y * &y % &prime == right).then_some((x, y))
    }

    fn verify(&self, point: &[u8], hash: &'static digest::Algorithm, message: &[u8], signature: &[u8]) -> bool {
        match (self.prime.len() * 4, hash.output_len() * 8) {
            (256, 256) => by_ring(&signature::ECDSA_P256_SHA256_ASN1, point, message, signature),
            (256, 384) => by_ring(&signature::ECDSA_P256_SHA384_ASN1, point, message, signature),
            (384, 256) => by_ring(&signature::ECDSA_P384_SHA256_ASN1, point, message, signature),
            (384, 384) => by_ring(&signature::ECDSA_P384_SHA384_ASN1, point, message, signature),
            _ => self.computes(point, digest::digest(hash, message).as_ref(), signature).unwrap_or(false),
        }
    }

    /// ECDSA verification (FIPS 186-5, 6.4.2); None where something is not even of the right form.
    fn computes(&self, point: &[u8], hash: &[u8], signature: &[u8]) -> Option<bool> {
        let (x, y) = self.point(point)?;
        let field = Field { prime: number(self.prime) };
        let order = number(self.order);
        let (r, s) = integers(signature)?;
        let zero = BigUint::ZERO;
        if r == zero || s == zero || r >= order || s >= order {
            return None;
        }
        // As many bits of the hash as the order has.
        let surplus = (hash.len() as u64 * 8).saturating_sub(order.bits());
        let hashed = BigUint::from_bytes_be(hash) >> surplus;
        let inverse = s.modpow(&(&order - 2_u32), &order);
        let (first, second) = (hashed * &inverse % &order, &r * &inverse % &order);
        let generator = Point::new(number(self.generator.0), number(self.generator.1));
        let own = Point::new(x, y);
        let both = field.add(&generator, &own);
        let mut sum = Point::infinity();
        for bit in (0..order.bits()).rev() {
            sum = field.double(&sum);
            match (first.bit(bit), second.bit(bit)) {
                (true, true) => sum = field.add(&sum, &both),
                (true, false) => sum = field.add(&sum, &generator),
                (false, true) => sum = field.add(&sum, &own),
                (false, false) => {}
            }
        }
        if sum.is_infinity() {
            return None;
        }
        let inverse = sum.z.modpow(&(&field.prime - 2_u32), &field.prime);
        let x = &sum.x * &inverse % &field.prime * &inverse % &field.prime;
        Some(x % order == r)
    }
}

fn number(digits: &'static str) -> BigUint {
    BigUint::parse_bytes(digits.as_bytes(), 16).expect("the tables of curves hold hexadecimal digits")
}

/// The two numbers of a signature: `SEQUENCE { INTEGER, INTEGER }` in DER.
fn integers(signature: &[u8]) -> Option<(BigUint, BigUint)> {
    let (inside, []) = element(0x30, signature)? else { return None };
    let (r, rest) = element(0x02, inside)?;
    let (s, []) = element(0x02, rest)? else { return None };
    let positive = |bytes: &[u8]| match bytes {
        [0, next, ..] if *next < 0x80 => None,
        [first, ..] if *first < 0x80 => Some(BigUint::from_bytes_be(bytes)),
        _ => None,
    };
    Some((positive(r)?, positive(s)?))
}

/// What is in the element of this tag at the beginning, and what follows it.
fn element(tag: u8, bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&found, rest) = bytes.split_first()?;
    let (&short, rest) = rest.split_first()?;
    let (length, rest) = match short {
        0..=0x7f => (short, rest),
        0x81 => {
            let (&long, rest) = rest.split_first()?;
            (Some(long).filter(|long| *long >= 0x80)?, rest)
        }
        _ => return None,
    };
    rest.split_at_checked(usize::from(length)).filter(|_| found == tag)
}

/// A point in Jacobian coordinates: (x/z², y/z³); z is zero for the point at infinity.
struct Point {
    x: BigUint,
    y: BigUint,
    z: BigUint,
}

impl Point {
    fn new(x: BigUint, y: BigUint) -> Self {
        Self { x, y, z: BigUint::from(1_u32) }
    }

    fn infinity() -> Self {
        Self { x: BigUint::from(1_u32), y: BigUint::from(1_u32), z: BigUint::ZERO }
    }

    fn is_infinity(&self) -> bool {
        self.z == BigUint::ZERO
    }

    fn copy(&self) -> Self {
        Self { x: self.x.clone(), y: self.y.clone(), z: self.z.clone() }
    }
}

/// Arithmetic of points; all numbers are below the prime.
struct Field {
    prime: BigUint,
}

impl Field {
    fn multiply(&self, a: &BigUint, b: &BigUint) -> BigUint {
        a * b % &self.prime
    }

    fn times(&self, a: &BigUint, factor: u32) -> BigUint {
        a * factor % &self.prime
    }

    fn plus(&self, a: &BigUint, b: &BigUint) -> BigUint {
        (a + b) % &self.prime
    }

    fn minus(&self, a: &BigUint, b: &BigUint) -> BigUint {
        (a + &self.prime - b) % &self.prime
    }

    fn double(&self, point: &Point) -> Point {
        if point.is_infinity() {
            return Point::infinity();
        }
        let delta = self.multiply(&point.z, &point.z);
        let gamma = self.multiply(&point.y, &point.y);
        let beta = self.multiply(&point.x, &gamma);
        let slope = self.multiply(&self.minus(&point.x, &delta), &self.plus(&point.x, &delta));
        let alpha = self.times(&slope, 3);
        let x = self.minus(&self.multiply(&alpha, &alpha), &self.times(&beta, 8));
        let rise = self.multiply(&alpha, &self.minus(&self.times(&beta, 4), &x));
        let y = self.minus(&rise, &self.times(&self.multiply(&gamma, &gamma), 8));
        let z = self.times(&self.multiply(&point.y, &point.z), 2);
        Point { x, y, z }
    }

    fn add(&self, a: &Point, b: &Point) -> Point {
        if a.is_infinity() {
            return b.copy();
        }
        if b.is_infinity() {
            return a.copy();
        }
        let (za, zb) = (self.multiply(&a.z, &a.z), self.multiply(&b.z, &b.z));
        let (ua, ub) = (self.multiply(&a.x, &zb), self.multiply(&b.x, &za));
        let sa = self.multiply(&a.y, &self.multiply(&b.z, &zb));
        let sb = self.multiply(&b.y, &self.multiply(&a.z, &za));
        if ua == ub {
            return if sa == sb { self.double(a) } else { Point::infinity() };
        }
        let (run, rise) = (self.minus(&ub, &ua), self.minus(&sb, &sa));
        let square = self.multiply(&run, &run);
        let cube = self.multiply(&square, &run);
        let v = self.multiply(&ua, &square);
        let x = self.minus(&self.minus(&self.multiply(&rise, &rise), &cube), &self.times(&v, 2));
        let y = self.minus(&self.multiply(&rise, &self.minus(&v, &x)), &self.multiply(&sa, &cube));
        let z = self.multiply(&self.multiply(&a.z, &b.z), &run);
        Point { x, y, z }
    }
}
