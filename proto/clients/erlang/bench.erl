%% What reporting costs this process: N users, R rounds of a keepalive each and a flush.
-module(bench).
-export([main/0]).

main() ->
    #{"--sidecar" := Path, "--users" := Users, "--rounds" := Rounds} = options(init:get_plain_arguments(), #{}),
    {N, R} = {list_to_integer(Users), list_to_integer(Rounds)},
    {ok, Link} = liveness:connect(#{path => list_to_binary(Path), name => <<"bench">>}),
    Conns = [{iolist_to_binary(io_lib:format("user-~7..0b", [I])), liveness:new_conn(Link)} || I <- lists:seq(1, N)],
    [liveness:login(Link, Uid, Conn) || {Uid, Conn} <- Conns],
    ok = liveness:flush(Link, infinity),
    {Cpu, _} = statistics(runtime),
    Began = erlang:monotonic_time(microsecond),
    [begin
        [liveness:keepalive(Link, Uid, Conn) || {Uid, Conn} <- Conns],
        ok = liveness:flush(Link, infinity)
     end || _ <- lists:seq(1, R)],
    Wall = (erlang:monotonic_time(microsecond) - Began) / 1.0e6,
    {CpuNow, _} = statistics(runtime),
    io:format("{\"events\": ~b, \"cpu_s\": ~.3f, \"wall_s\": ~.3f}~n", [N * R, (CpuNow - Cpu) / 1000, Wall]),
    liveness:close(Link),
    halt(0).

options([Key, Value | Rest], Options) -> options(Rest, Options#{Key => Value});
options([], Options) -> Options.
