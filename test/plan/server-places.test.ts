import { describe, expect, it } from 'vitest';
import { serverPlaces, type PlacementKind, type ServerHosts } from '../../src/plan/index.ts';

const workerHosts = ['w0', 'w0', 'w1', 'w2'];
const extraHosts = ['s0', 's1'];

describe('servers', () => {
  it.each<[PlacementKind, string[]]>([
    ['CC', ['w0']],
    ['CS', ['w0', 'w1', 'w2']],
    ['NCC', ['s0']],
    ['NCS', ['s0', 's1']],
  ])('of %s run on %j', (kind, places) => {
    expect(serverPlaces(kind, { workerHosts, extraHosts })).toEqual(places);
  });

  it('may be fewer than hosts if they are shards', () => {
    expect(serverPlaces('CS', { workerHosts, servers: 2 })).toEqual(['w0', 'w1']);
    expect(serverPlaces('NCS', { workerHosts, extraHosts, servers: 1 })).toEqual(['s0']);
  });

  it.each<[string, PlacementKind, ServerHosts, string]>([
    [
      'a second central server',
      'CC',
      { workerHosts, servers: 2 },
      'servers is 2; pass 1, as CC is central, or use CS.',
    ],
    [
      'more servers than hosts',
      'NCS',
      { workerHosts, extraHosts, servers: 3 },
      'servers is 3; pass at most 2, one for each of the hosts in extraHosts.',
    ],
    ['no host', 'NCC', { workerHosts }, 'extraHosts is []; pass at least one host for the servers of NCC.'],
    [
      'a host with a worker',
      'NCS',
      { workerHosts, extraHosts: ['s0', 'w1'] },
      'Host w1 has a worker, but NCS keeps servers apart from them; take it out of extraHosts or use CS.',
    ],
    ['no server', 'CS', { workerHosts, servers: 0 }, 'servers is 0; pass a positive integer.'],
    ['an unknown kind', 'NC' as PlacementKind, { workerHosts }, 'kind is NC; pass one of CC, CS, NCC, NCS.'],
  ])('are refused with %s', (_, kind, hosts, message) => {
    expect(() => serverPlaces(kind, hosts)).toThrow(
      expect.objectContaining({ code: 'INVALID_ARGUMENT', message }),
    );
  });
});
