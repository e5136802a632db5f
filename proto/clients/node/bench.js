/**
 * What one event costs a gateway: node bench.js --sidecar PATH --users 10000 --rounds 20
 *
 * It logs users in, and then reports a keepalive of each of them in every round.
 */
import { parseArgs } from 'node:util'
import { Sidecar } from 'liveness-client'

const { values } = parseArgs({ options: {
  sidecar: { type: 'string' }, users: { type: 'string' }, rounds: { type: 'string' },
} })
const [users, rounds] = [Number(values.users), Number(values.rounds)]
const sidecar = new Sidecar(values.sidecar, { name: 'bench' })
const uids = Array.from({ length: users }, (_, i) => `user-${String(i + 1).padStart(7, '0')}`)
const conns = uids.map(() => sidecar.newConn())
uids.forEach((uid, i) => sidecar.login(uid, conns[i]))
await sidecar.flush()

const [cpuBefore, began] = [process.cpuUsage(), process.hrtime.bigint()]
for (let round = 0; round < rounds; round++) {
  for (let i = 0; i < users; i++) sidecar.keepalive(uids[i], conns[i])
  await sidecar.flush()
}
const { user, system } = process.cpuUsage(cpuBefore) // microseconds, as getrusage
const [cpu, wall] = [(user + system) / 1e6, Number(process.hrtime.bigint() - began) / 1e9]
console.log(JSON.stringify({ events: users * rounds, cpu_s: cpu, wall_s: wall }))
await sidecar.close()
