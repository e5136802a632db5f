/**
 * A gateway's link to the liveness sidecar. It keeps reports until they are on its disk.
 *
 * @typedef {string | number} Uid  a user: 1 to 255 bytes without control characters, or an
 *   integer from 0 to 2^53-1. `7` and `"7"` are one user.
 * @typedef {{ uid: Uid, conn: number, reason: string, record: object }} End  a connection to
 *   close; `reason`: 'silence', 'gateway_lost', 'moved', or one that a later sidecar adds
 */
import { once } from 'node:events'
import net from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import * as frames from './frames.js'
export { ReportError } from './frames.js'
const { KEEPALIVE, LOGIN, LOGOUT, MESSAGE, NONE, encode, now } = frames

const GATHER_MS = 10 // what is written at once is collected for so long
const FLUSH_SHARE = 0.9 // of `welcome.flush`; the rest is for delays of the event loop
const MAX_CHANGES = 4096 // encoded at once: more would block the gateway's event loop
const DAY_S = 86_400 // the longest timeout, and the longest wait
// The promise in hello: a quarter of the users' timeout. Flushes keep it: 1 s more is allowed.
const [LEAST_PING_S, MAX_PING_S] = [0.25, 3]
// Pauses before the next link are random: up to 1 s, after errors up to 2 s, 4 s and so on.
const [MAX_PAUSE_S, MAX_REFUSED_PAUSE_S] = [10, 30]
const REMEDIES = new Map([ // of errors that a new link would meet again
  ['replaced', 'end one of the two, or give each its own name; resume() takes this one over'],
  ['not-allowed', "allow this gateway's Unix user and name in the sidecar's [access]"],
  ['bad-hello', 'correct the options, or update the older one of this library and the sidecar'],
  ['unsupported-protocol', 'update the older one of this library and the sidecar'],
])

/** A link, kept from now until `close`. A report only notes what happened, and does no I/O. */
export class Sidecar {
  /** 'connecting', 'linked', 'away', 'refused' or 'replaced'; only the last needs `resume`. */
  state = 'connecting'
  /** `ignored`: reports of connections that were not open; `refused`: frames and links. */
  stats = { links: 0, ignored: 0, duplicates: 0, refused: 0 }
  // By conn: { uid, conn, opened (CLOCK_MONOTONIC), timeout, isOpen, next, isActive, ping,
  // loginPing }. The last are the pings behind what was written of it, and behind its login.
  #connections = new Map()
  #closed = new Set() // those that are not open, until a pong covers their logout
  #logins = new Set() // those whose `next` is a login, in order; written before any logout, so
  #logouts = new Set() // that no user with a newer connection is offline in between
  #active = [] // those whose `next` is activity, or was; each is in it once: `isActive`
  #ends = new Map() // { end, seq, isTaken } by connection, until the gateway has handled it
  #newest = 0 // seq
  #believedFrom = 0 // offlines below this seq were decided while we were shut out
  #wasShutOut = false // since the latest welcome
  #log // of that welcome
  #pings = 0 // the number of the latest ping, and of the latest that was answered
  #pongs = 0
  #nextConn = Math.floor(Date.now() * 1048.576) // begins with the seconds since 1970 x 2^20
  #socket
  #link // while linked: { welcome, since, timer, acked, gathering, toFlush }
  #failures = 0
  #noted = ''
  #waking = new AbortController()
  #isClosed = false
  #options

  /**
   * @param {string} path  the sidecar's socket
   * @param {object} options
   * @param {string} options.name  this gateway's own, 1 to 64 bytes, the same at every start
   * @param {number} [options.timeout]  silence, in seconds, after which its users are offline
   * @param {boolean} [options.fresh]  whether this process begins without connections
   * @param {(state: string) => void} [options.onState]  is called with each new state
   * @param {(line: string) => void} [options.log]  gets what happens to the link
   * @throws {ReportError} an argument is invalid
   */
  constructor(path, { name, timeout, fresh = true, onState = () => {}, log = console.error }) {
    frames.checkName('path', path, 107)
    frames.checkName('name', name, 64)
    frames.checkSeconds('timeout', timeout ?? DAY_S, 1, DAY_S)
    const ping = Math.min(MAX_PING_S, Math.max((timeout ?? DAY_S) / 4, LEAST_PING_S))
    this.#options = { path, name, timeout, fresh, ping, onState, log }
    this.#keepLinks()
  }

  /** A number for a connection, below 2^53; it never repeats, not even after a restart. */
  newConn() {
    return this.#nextConn++
  }

  /**
   * Report that a connection was authenticated; if repeated, that it is alive.
   * @param {Uid} uid
   * @param {number} conn  see `newConn`
   * @param {{ timeout?: number, age?: number }} [options]  in seconds; `timeout`: of this uid,
   *   until its next login; `age`: since it was authenticated
   * @throws {ReportError} an argument is invalid; nothing was reported
   */
  login(uid, conn, { timeout, age = 0 } = {}) {
    frames.checkSeconds('timeout', timeout ?? DAY_S, 1, DAY_S)
    frames.checkSeconds('age', age, 0)
    let connection = this.#find(uid, conn)
    if (connection?.isOpen === false) return void this.stats.ignored++ // it stays closed
    if (connection === undefined) {
      connection = { uid, conn, opened: now() - age, isOpen: true, ping: 0, loginPing: 0 }
      this.#connections.set(conn, connection)
    }
    connection.timeout = timeout
    this.#change(connection, LOGIN)
  }

  /**
   * Report activity; ignored, and counted, if the connection is not open.
   * @throws {ReportError} an argument is invalid, or the connection is another user's
   */
  keepalive(/** @type {Uid} */ uid, /** @type {number} */ conn) {
    this.#noteActivity(this.#find(uid, conn), KEEPALIVE)
  }

  /** Report a message, which is activity too; as `keepalive`. */
  message(/** @type {Uid} */ uid, /** @type {number} */ conn) {
    this.#noteActivity(this.#find(uid, conn), MESSAGE)
  }

  /** Report that a connection has closed; as `keepalive`. Call it wherever you close one. */
  logout(/** @type {Uid} */ uid, /** @type {number} */ conn) {
    const connection = this.#find(uid, conn)
    if (connection?.isOpen) return this.#close(connection)
    this.stats.ignored++
    if (this.#ends.get(connection)?.isTaken === false) this.#ends.delete(connection)
  }

  /**
   * Iterate, without end, over the connections that have to be closed; in one loop at a time.
   * An end is acknowledged when the loop comes back for the next one. If it stops before, the
   * next loop gets that end again.
   * @returns {AsyncGenerator<End>}
   */
  async *ended() {
    while (!this.#isClosed) {
      await this.#until(() => this.#ends.size > 0)
      for (const [connection, entry] of this.#ends) {
        entry.isTaken = true
        yield entry.end
        this.#ends.delete(connection)
        this.#writeSoon() // the ack
      }
    }
  }

  /**
   * Wait until everything reported so far is on the sidecar's disk; at most so many seconds.
   * @returns {Promise<boolean>} whether it is; false after the timeout, or after `close`
   */
  async flush(timeout = DAY_S) {
    const number = this.#pings + 1
    this.#writeSoon(true)
    await this.#until(() => this.#pongs >= number, timeout)
    return this.#pongs >= number
  }

  /** Take the name over again, after `replaced`; else it does nothing. */
  resume() {
    if (this.state === 'replaced') this.#note('takes the name over again', 'away')
  }

  /** Write the last reports, for at most a second, and end the link. */
  async close() {
    if (this.state !== 'refused' && this.state !== 'replaced') await this.flush(1)
    this.#isClosed = true
    clearInterval(this.#link?.timer)
    this.#socket.destroy()
    this.#wake()
  }

  #find(uid, conn) {
    const connection = this.#connections.get(conn)
    if (!connection || connection.uid !== uid) frames.checkUser(uid, conn, connection?.uid)
    return connection
  }

  #noteActivity(connection, event) {
    if (!connection?.isOpen) return void this.stats.ignored++
    if (connection.next >= event) return // a login is activity too
    connection.next = event
    if (!connection.isActive) this.#active.push(connection)
    connection.isActive = true
  }

  #change(connection, event) {
    connection.next = event
    const waiting = event === LOGIN ? this.#logins : this.#logouts
    waiting.add(connection)
    this.#writeSoon()
  }

  /** Its activity is dropped: behind the logout, that would open a session again. */
  #close(connection) {
    connection.isOpen = false
    this.#logins.delete(connection)
    if (connection.ping === 0) return void this.#connections.delete(connection.conn)
    this.#closed.add(connection)
    this.#change(connection, LOGOUT)
  }

  /** Have what no pong covered sent again; and the logins of all open connections, if asked. */
  #sendAgain(declare) {
    this.#logins.clear()
    for (const connection of this.#connections.values()) {
      const { isOpen, next, ping, loginPing } = connection
      const isLogin = declare || next === LOGIN || loginPing > this.#pongs
      if (isLogin || !isOpen) this.#change(connection, isOpen ? LOGIN : LOGOUT)
      else if (ping > this.#pongs) this.#noteActivity(connection, KEEPALIVE)
    }
  }

  /** The seq up to which the gateway has handled all records. */
  get #handled() {
    const [first] = this.#ends.values()
    return first === undefined ? this.#newest : Math.max(first.seq - 1, 0)
  }

  /** Have what waits written, with what follows soon; activity only if it is due. */
  #writeSoon(isDue = false) {
    const link = this.#link
    if (link === undefined) return
    if (isDue) link.toFlush = this.#active.length
    // Behind reads: a write that fails discards what has arrived, and that may say why.
    link.gathering ??= setTimeout(() => setImmediate(() => this.#write(link)), GATHER_MS)
  }

  #write(link) {
    if (link === undefined || link !== this.#link) return
    link.gathering = undefined
    for (let some; !this.#socket.writableNeedDrain && (some = this.#nextFrames(link));) {
      for (const frame of some) this.#socket.write(frame)
    } // if the socket takes no more, `drain` goes on
  }

  /** The next frames to write, which count as sent. Undefined: there are no more. */
  #nextFrames(link) {
    const waiting = this.#logins.size > 0 ? this.#logins : this.#logouts
    const changes = [...waiting].slice(0, MAX_CHANGES)
    for (const connection of changes) waiting.delete(connection)
    const runs = frames.changeRuns(changes, link)
    if (runs.length > 0) return runs.flatMap((run) => this.#encode(run))
    if (link.toFlush > 0) {
      const batch = this.#active.splice(0, Math.min(link.toFlush, link.welcome.max_batch))
      link.toFlush -= batch.length
      for (const connection of batch) connection.isActive = false
      return [MESSAGE, KEEPALIVE].flatMap((event) =>
        this.#encode({ event, batch: batch.filter(({ next }) => next === event) }))
    }
    if (this.#handled > link.acked) return [encode(['ack', (link.acked = this.#handled)])]
    if (link.toFlush === undefined) return undefined
    link.toFlush = undefined
    return [encode(['ping', ++this.#pings])]
  }

  #encode({ event, batch, options }) {
    if (batch.length === 0) return []
    for (const connection of batch) {
      connection.next = NONE
      connection.ping = this.#pings + 1
      if (event === LOGIN) connection.loginPing = connection.ping
    }
    return frames.encodeEvent(event, batch, options, this.#link.welcome)
  }

  #receive(frame) {
    const [name, content] = Array.isArray(frame) ? frame : []
    if (name === 'notices' && Array.isArray(content)) {
      for (const record of content) this.#receiveRecord(record)
    } else if (name === 'welcome' && this.#link === undefined && frames.isWelcome(content)) {
      this.#receiveWelcome(content)
    } else if (name === 'pong' && content > this.#pongs && content <= this.#pings) {
      this.#receivePong(content)
    } else if (name === 'error' && typeof content?.message === 'string') {
      this.stats.refused++
      if (content.fatal !== false) throw Object.assign(new Error(), content)
      this.#note(`the sidecar refused a frame: ${content.message}`)
    } else if (typeof name !== 'string' || ['welcome', 'notices', 'error'].includes(name)) {
      throw new frames.BrokenFrame('the sidecar sent a frame that is not of protocol 1')
    }
    this.#writeSoon()
    this.#wake()
  }

  #receiveWelcome(welcome) {
    const [{ log, next }, isFirst] = [welcome, this.stats.links++ === 0]
    // A log that ends before a record that it has sent is another log.
    const isNewLog = !isFirst && (log !== this.#log || next <= this.#newest)
    if (isNewLog) {
      this.#newest = 0
      for (const end of this.#ends.values()) end.seq = 0 // needs no ack any more
    }
    if (isNewLog || this.#wasShutOut) this.#believedFrom = this.#wasShutOut ? next : 0
    const everyS = Math.min(welcome.flush * FLUSH_SHARE, this.#options.ping)
    const timer = setInterval(() => this.#writeSoon(true), everyS * 1000)
    this.#link = { welcome, since: now(), timer, acked: 0 }
    this.#sendAgain(isNewLog || (!isFirst && (this.#wasShutOut || welcome.known === false)))
    this.#log = log
    this.#wasShutOut = false
    this.#note('linked', 'linked')
    this.#writeSoon(true)
  }

  #receiveRecord(record) {
    if (!Number.isSafeInteger(record?.seq)) throw new frames.BrokenFrame('a record has no seq')
    const { seq, kind } = record
    if (seq <= this.#newest) return void this.stats.duplicates++
    this.#newest = seq
    if (kind === 'gap') this.#sendAgain(true) // a lost record may have ended a connection
    const isMove = kind === 'moved'
    const isBelieved = isMove || (kind === 'offline' && seq >= this.#believedFrom)
    const [gateway, conn, reason] = isMove
      ? [record.from, record.from_conn, kind] : [record.gateway, record.conn, record.reason]
    const connection = this.#connections.get(conn)
    if (!isBelieved || gateway !== this.#options.name || !connection?.isOpen) return
    const end = { uid: connection.uid, conn, reason, record }
    this.#ends.set(connection, { end, seq, isTaken: false })
    // It is logged out too: activity may have crossed the record, and opened a session again.
    this.#close(connection)
  }

  #receivePong(number) {
    this.#pongs = number
    for (const connection of this.#closed) {
      if (connection.next !== NONE || connection.ping > number) continue
      if (this.#ends.has(connection)) continue // it must not be opened again
      this.#closed.delete(connection)
      this.#connections.delete(connection.conn)
    }
  }

  async #keepLinks() {
    while (!this.#isClosed) {
      this.#socket = this.#connect()
      const error = await once(this.#socket, 'close').then(() => undefined, (reason) => reason)
      if (this.#isClosed) return
      const [pauseS, state] = [this.#linkEnded(error), this.state]
      await this.#until(() => this.state !== state, pauseS)
    }
  }

  #connect() {
    const reader = new frames.FrameReader()
    const { name, timeout, ping, fresh } = this.#options
    const hello = { protocol: 1, name, timeout, ping, kinds: ['offline', 'moved'] }
    if (this.stats.links === 0) hello.fresh = fresh
    else if (this.#handled > 0) Object.assign(hello, { after: this.#handled, log: this.#log })
    const socket = net.connect(this.#options.path)
    // Behind reads, as in `#writeSoon`: the sidecar may refuse before hello.
    socket.on('connect', () => setImmediate(() => socket.write(frames.encodeHello(hello))))
    socket.on('drain', () => this.#write(this.#link))
    socket.on('end', () => socket.destroy()) // what was not written yet is sent again
    socket.on('data', (chunk) => {
      try {
        for (const frame of reader.feed(chunk)) this.#receive(frame)
      } catch (error) {
        socket.destroy(error)
      }
    })
    return socket
  }

  /** Note why the link has ended. Returns the pause before the next one, in seconds. */
  #linkEnded(error) {
    const { code, fatal, pid, syscall, message = 'the link has ended' } = error ?? {}
    const [link, remedy] = [this.#link, REMEDIES.get(code)]
    clearInterval(link?.timer)
    this.#link = undefined
    this.#wasShutOut ||= remedy !== undefined || (fatal !== undefined && link === undefined)
    const state = this.stats.links > 0 ? 'away' : 'connecting'
    const advice = remedy ? `. Its users are not watched. What to do: ${remedy}` : ''
    const [refused, by] = [code === 'replaced' ? code : 'refused', pid ? ` (pid ${pid})` : '']
    this.#note(`no link: ${message}${by}${advice}`, remedy ? refused : state)
    if (code === 'replaced') return Infinity
    if (!error || syscall || now() - link?.since >= MAX_PAUSE_S) this.#failures = 0
    const longest = Math.min(2 ** this.#failures++, remedy ? MAX_REFUSED_PAUSE_S : MAX_PAUSE_S)
    return longest * (remedy ? 0.5 + Math.random() / 2 : Math.random())
  }

  /** Log a line, but not twice in a row, and change the state. Callbacks are called later. */
  #note(line, state = this.state) {
    const { path, name, log, onState } = this.#options
    if (line !== this.#noted) setImmediate(log, `liveness: ${name} at ${path}: ${line}`)
    if (state !== this.state) setImmediate(onState, state)
    this.#noted = line
    this.state = state
    this.#wake()
  }

  /** Wait until it is true, looked at after each `#wake`; at most so many seconds. */
  async #until(isTrue, seconds = DAY_S) {
    const end = now() + seconds
    while (!this.#isClosed && !isTrue() && now() < end) {
      const ms = Math.min(end - now(), DAY_S) * 1000
      await sleep(ms, undefined, { signal: this.#waking.signal }).catch(() => {})
    }
  }

  #wake() {
    this.#waking.abort()
    this.#waking = new AbortController()
  }
}
