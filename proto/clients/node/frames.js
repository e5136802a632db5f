/** Frames of the protocol: what they can hold, and their bytes, msgpack values of a stream. */
import { Decoder, Encoder } from '@msgpack/msgpack'

const MAX_BYTES = 16 * 2 ** 20 // of a frame
const MAX_VALUES = 2 ** 20 // in a frame: decoded, each may take 60 bytes
const MAX_DEPTH = 32
const decoder = new Decoder()
const encoder = new Encoder({ ignoreUndefined: true })

// Of each first byte from 0xc0 to 0xdf: how many bytes follow, or else, below 0, how many bytes
// have the length of the rest. 0xc1 begins no value.
const FOLLOWING = [
  0, NaN, 0, 0, -1, -2, -4, -1, -2, -4, // nil, false, true, binary, extensions
  4, 8, 1, 2, 4, 8, 1, 2, 4, 8, // floats, unsigned and signed integers
  2, 3, 5, 9, 17, -1, -2, -4, -2, -4, -2, -4, // extensions, strings, arrays, maps
]

/** What is to be reported of a connection: the higher one counts. */
export const EVENTS = ['', 'keepalive', 'message', 'login', 'logout']
export const [NONE, KEEPALIVE, MESSAGE, LOGIN, LOGOUT] = EVENTS.keys()

/** The stream is no msgpack, or a frame is beyond the bounds or not of the protocol. */
export class BrokenFrame extends Error {}

/** A call that is wrong by itself; nothing was reported. */
export class ReportError extends Error {}

/** Cuts a stream into frames. They are decoded once they are known to be within the bounds. */
export class FrameReader {
  #bytes = Buffer.alloc(0) // from the beginning of a frame
  #scanned = 0 // so many of them
  #values = 0
  #missing = [] // values, in each array and map around `#scanned`; the innermost last

  /** Go on to the end of the frame; return whether it has arrived. */
  #scan() {
    const missing = this.#missing
    while (this.#scanned < this.#bytes.length) {
      const [size, children] = this.#measure(this.#scanned)
      // Each child has at least one byte.
      const isLarge = this.#scanned + size + children > MAX_BYTES
      if (isLarge || this.#values >= MAX_VALUES) throw new BrokenFrame('a frame is too large')
      if (this.#scanned + size > this.#bytes.length) return false
      this.#scanned += size
      this.#values++
      if (children > 0) {
        if (missing.push(children) > MAX_DEPTH) throw new BrokenFrame('a frame is too deep')
        continue
      }
      while (missing.length > 0 && --missing[missing.length - 1] === 0) missing.pop()
      if (missing.length === 0) return true
    }
    return false
  }

  /** The bytes of a value, without those of its children; and how many children it has. */
  #measure(at) {
    const first = this.#bytes[at]
    if (first < 0x80 || first >= 0xe0) return [1, 0] // a small integer
    if (first < 0x90) return [1, 2 * (first & 0x0f)] // a map: keys and values
    if (first < 0xa0) return [1, first & 0x0f] // an array
    if (first < 0xc0) return [1 + (first & 0x1f), 0] // a string
    const following = FOLLOWING[first - 0xc0]
    if (Number.isNaN(following)) throw new BrokenFrame('0xc1 begins no value')
    if (following >= 0) return [1 + following, 0]
    const size = 1 - following
    if (at + size > this.#bytes.length) return [size, 0] // more than there is
    const count = this.#bytes.readUIntBE(at + 1, -following)
    if (first >= 0xde) return [size, 2 * count]
    if (first >= 0xdc) return [size, count]
    const isExtension = first >= 0xc7 && first <= 0xc9 // with its type
    return [size + count + Number(isExtension), 0]
  }

  /** Yield the frames that are complete with these bytes; throws what is wrong with them. */
  *feed(chunk) {
    this.#bytes = Buffer.concat([this.#bytes, chunk])
    while (this.#scan()) {
      const frame = this.#bytes.subarray(0, this.#scanned)
      this.#bytes = this.#bytes.subarray(this.#scanned)
      this.#scanned = this.#values = 0
      yield decoder.decode(frame)
    }
  }
}

export const encode = (frame) => encoder.encode(frame)

/** Encode hello; its clock is CLOCK_MONOTONIC and the wall clock, read at one moment. */
export function encodeHello(options) {
  for (let tries = 0; tries < 5; tries++) {
    const clock = [now(), Date.now() / 1000]
    if (now() - clock[0] < 0.001) return encode(['hello', { ...options, clock }])
  }
  return encode(['hello', options]) // the process was halted each time
}

/** Split changes, in order, into runs of the same event, timeout and age: each is a frame. */
export function changeRuns(changes, { since, welcome }) {
  const [runs, time] = [[], now()]
  for (const connection of changes) {
    const { next: event, opened, timeout, ping } = connection
    // Rounded down to 0.1 s, and later to less: a million ages of one day are 10,000 at most.
    const step = Math.max(2 ** Math.floor(Math.log2(time - opened)) / 8192, 0.1)
    const age = Math.floor((time - opened) / step) * step
    const isNew = ping === 0 && opened >= since // such logins arrive in order
    const options = event === LOGIN ? { timeout, age: isNew ? undefined : age } : {}
    const key = `${event} ${options.timeout} ${options.age}`
    const run = runs.at(-1)
    if (run?.key === key && run.batch.length < welcome.max_batch) run.batch.push(connection)
    else runs.push({ key, event, options, batch: [connection] })
  }
  return runs
}

/** Encode an event of some connections; in several frames if one would be too long. */
export function encodeEvent(event, batch, options, welcome) {
  const all = { ...options, conn: batch.map(({ conn }) => conn) }
  if (event === LOGIN && welcome.began === true) { // the clock began with the host, at 0
    all.began = batch.map(({ opened }) => (opened >= 0 ? opened : null))
  }
  const bytes = encode([EVENTS[event], batch.map(({ uid }) => uid), all])
  if (bytes.length <= welcome.max_frame || batch.length === 1) return [bytes]
  const middle = batch.length >> 1
  return [batch.slice(0, middle), batch.slice(middle)]
    .flatMap((half) => encodeEvent(event, half, options, welcome))
}

/** CLOCK_MONOTONIC, in seconds. */
export const now = () => Number(process.hrtime.bigint()) / 1e9

/** Whether it has what this client reads of a welcome. */
export function isWelcome(welcome) {
  return typeof welcome?.log === 'string' && Number.isSafeInteger(welcome.next) &&
    isWithin(welcome.flush, 0, 3600) && welcome.max_batch >= 1 && welcome.max_frame >= 1
}

/** Throw a `ReportError` unless it is right; its message is made only then. */
function check(isRight, message) {
  if (!isRight) throw new ReportError(message())
}

/** Check a uid and a conn, which is the uid's if it is anybody's. */
export function checkUser(uid, conn, owner) {
  check(isText(uid, 255) || isNatural(uid), () => `uid is ${show(uid)}; it must be a string ` +
    'of 1 to 255 bytes without control characters, or an integer from 0 to 2^53-1')
  check(isNatural(conn), () => `conn is ${show(conn)}; it must be from newConn()`)
  check(owner === undefined || String(owner) === String(uid), () => `connection ${conn} is ${show(owner)}'s, ` +
    `not ${show(uid)}'s; each connection has a conn of its own, see newConn()`)
}

export function checkName(key, name, most) {
  check(isText(name, most), () => `${key} is ${show(name)}; it must be 1 to ${most} bytes`)
}

export function checkSeconds(key, value, least, most = Number.MAX_VALUE) {
  check(isWithin(value, least, most),
    () => `${key} is ${show(value)}; it must be ${least} to ${most} seconds`)
}

const isNatural = (value) => Number.isSafeInteger(value) && value >= 0
const isWithin = (value, least, most) =>
  typeof value === 'number' && value >= least && value <= most

/** Whether it is a string of 1 to so many bytes of UTF-8, without control characters. */
const isText = (value, most) => typeof value === 'string' && value.length > 0 &&
  Buffer.byteLength(value) <= most && !/[\u0000-\u001f\u007f]|\p{Surrogate}/u.test(value)

const show = (value) =>
  (typeof value === 'string' ? JSON.stringify(value) : String(value)).slice(0, 80)
