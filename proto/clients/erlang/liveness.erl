%% A gateway's link to the sidecar, kept by a gen_server: see proto/README.md and README.md.
%%
%% Reports are plain calls that never wait. Open connections and activity are two ETS
%% tables, so that a keepalive is two look-ups and no message. Memory is bounded by the
%% open connections and those that ended since the last pong.
-module(liveness).
-behaviour(gen_server).

-export([connect/1, new_conn/1, login/3, login/4, keepalive/3, message/3, logout/3]).
-export([next_end/1, flush/2, close/1, resume/1, state/1, stats/1]).
-import(liveness_frames, [encode/1, decode/1, identity/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-define(GATHER_MS, 20).            % logins, logouts and acks are collected so long
-define(MAX_FRAME, 16#1000000).    % of the sidecar, in bytes
-define(MAX_BACKOFF, 10.0).        % seconds

-record(s, {
    path, hello, ping_ms, on_state, open, active, counts,
    state = connecting, sock, writer, unread = <<>>, welcome, link_began, logged,
    writing = false, due = false, timer, idle, link = 0,
    changes = #{},                 % conn => {order, {login, since, timeout} | logout, uid}
    order = 0, fresh_logins = #{}, % conns whose login was never sent
    sent = {#{}, #{}},             % changes, activity: since the last ping
    awaiting = {#{}, #{}},         % before it
    pings = 0, pongs = 0, pinging = false, requested = 0,
    waiters = [],                  % {ping, until when, from} of each flush
    ends = queue:new(),            % {seq, end} that nobody has got
    unread_ends = #{},             % their conns; withdrawn if the gateway logs out first
    current, reader,               % {pid, seq, end}, and who waits for the next
    newest = 0, acked = 0, believed = 0, shut_out = false, failures = 0, links = 0
}).

%% --- what a gateway calls ---------------------------------------------------------------

%% Keep a link to the sidecar. Options: path, name (binaries); timeout (seconds), fresh,
%% on_state (a fun of the new state). The link lives as long as the calling process.
connect(#{path := Path, name := Name} = Options) ->
    Next = atomics:new(1, []),
    atomics:put(Next, 1, erlang:system_time(nanosecond) * 16#100000 div 1000000000),
    Counts = counters:new(4, []),  % ignored, duplicates, refused, replaced
    Tables = [ets:new(T, [public, {write_concurrency, true}, {read_concurrency, true}])
              || T <- [open, active]],
    {ok, Pid} = gen_server:start_link(?MODULE, {Path, Name, Options, Tables, Counts}, []),
    [ets:give_away(T, Pid, table) || T <- Tables],
    [Open, Active] = Tables,
    {ok, #{pid => Pid, open => Open, active => Active, next => Next, counts => Counts}}.

new_conn(#{next := Next}) -> atomics:add_get(Next, 1, 1).

login(Link, Uid, Conn) -> login(Link, Uid, Conn, #{}).

%% Options: timeout, and age, how long ago it was authenticated; both in seconds.
login(#{pid := Pid, open := Open} = Link, Uid, Conn, Options) ->
    {Timeout, Age} = {maps:get(timeout, Options, nil), maps:get(age, Options, 0)},
    ok = liveness_frames:check(Uid, Conn, Timeout, Age),
    At = max(0.0, now_s() - Age),
    case ets:insert_new(Open, {Conn, Uid, At, Timeout, false}) of
        true -> gen_server:cast(Pid, {login, Conn, Uid, At, Timeout});
        false -> keepalive(Link, Uid, Conn)
    end.

keepalive(#{active := Active} = Link, Uid, Conn) ->
    is_open(Link, Uid, Conn) andalso ets:insert_new(Active, {Conn, keepalive}), ok.

message(#{active := Active} = Link, Uid, Conn) ->
    is_open(Link, Uid, Conn) andalso ets:insert(Active, {Conn, message}), ok.

%% Also where a record has ended the connection: then it does nothing.
logout(#{pid := Pid, open := Open, active := Active} = Link, Uid, Conn) ->
    case is_open(Link, Uid, Conn) andalso ets:take(Open, Conn) of
        [_] ->
            ets:delete(Active, Conn),
            gen_server:cast(Pid, {logout, Conn, Uid});
        _ -> gen_server:cast(Pid, {withdraw, Conn})
    end.

%% Wait for the next connection to close: {Uid, Conn, Reason, Record}. Asking for the next
%% acknowledges the one before; another process that asks gets it again.
next_end(#{pid := Pid}) -> gen_server:call(Pid, next_end, infinity).

%% Wait until all reports so far are on the sidecar's disk: ok | {error, timeout}.
flush(#{pid := Pid}, TimeoutMs) ->
    Until = case TimeoutMs of infinity -> infinity; _ -> now_s() + TimeoutMs / 1000 end,
    try gen_server:call(Pid, {flush, Until}, TimeoutMs)
    catch exit:{timeout, _} -> {error, timeout}
    end.

%% Write the last reports, for at most a second, and end the link.
close(#{pid := Pid} = Link) ->
    _ = state(Link) =:= linked andalso flush(Link, 1000),
    gen_server:stop(Pid).

%% Take the name over again from another process; nothing unless it was replaced.
resume(#{pid := Pid}) -> gen_server:cast(Pid, resume).

state(#{pid := Pid}) -> gen_server:call(Pid, state, infinity).
stats(#{pid := Pid}) -> gen_server:call(Pid, stats, infinity).

is_open(#{counts := Counts, open := Open}, Uid, Conn) ->
    case ets:lookup(Open, Conn) of
        [{_, Uid, _, _, _}] -> true;
        [{_, Other, _, _, _}] -> identity(Uid) =:= identity(Other) orelse error({conn_of_another_user, Conn, Other});
        [] -> liveness_frames:check(Uid, Conn), counters:add(Counts, 1, 1), false
    end.

%% --- the process ------------------------------------------------------------------------

init({Path, Name, Options, [Open, Active], Counts}) ->
    Timeout = maps:get(timeout, Options, none),
    Ping = case Timeout of none -> 3.0; _ -> min(3.0, max(Timeout / 4, 0.25)) end,
    Hello = #{<<"protocol">> => 1, <<"name">> => Name, <<"ping">> => Ping,
              <<"fresh">> => maps:get(fresh, Options, true)},
    self() ! connect,
    {ok, #s{path = Path, ping_ms = round(Ping * 1000), open = Open, active = Active,
            counts = Counts, on_state = maps:get(on_state, Options, fun(_) -> ok end),
            hello = case Timeout of none -> Hello; _ -> Hello#{<<"timeout">> => Timeout} end}}.

handle_call(next_end, {Pid, _} = From, #s{current = {Other, Seq, End}} = S) when Other =/= Pid ->
    Again = queue:in_r({Seq, End}, S#s.ends),
    Unread = (S#s.unread_ends)#{element(2, End) => true},
    {noreply, hand_over(S#s{current = undefined, ends = Again, unread_ends = Unread, reader = From})};
handle_call(next_end, From, S) -> {noreply, hand_over(S#s{current = undefined, reader = From})};
handle_call({flush, Until}, From, #s{pings = Pings} = S) ->
    Waiters = [Waiter || {_, End, _} = Waiter <- S#s.waiters, End > now_s()],  % infinity > any number
    {noreply, write(S#s{requested = Pings + 1, waiters = [{Pings + 1, Until, From} | Waiters]})};
handle_call({read, Sock, Data}, _, #s{sock = Sock, unread = Unread} = S) ->
    {reply, ok, read(S#s{unread = <<Unread/binary, Data/binary>>})};
handle_call({read, _, _}, _, S) -> {reply, ok, S};  % of a link that has ended
handle_call(state, _, S) -> {reply, S#s.state, S};
handle_call(stats, _, #s{sent = {C1, A1}, awaiting = {C2, A2}} = S) ->
    Names = [ignored, duplicates, refused, replacements],
    Counts = maps:from_list([{Name, counters:get(S#s.counts, N)} || {N, Name} <- lists:enumerate(Names)]),
    {reply, Counts#{open => ets:info(S#s.open, size), links => S#s.links,
                    pending => map_size(S#s.changes) + ets:info(S#s.active, size),
                    unconfirmed => lists:sum([map_size(M) || M <- [C1, A1, C2, A2]])}, S}.

hand_over(#s{reader = {Pid, _} = From, unread_ends = Unread} = S) ->
    case queue:out(S#s.ends) of
        {{value, {Seq, {_, Conn, _, _} = End}}, Ends} when is_map_key(Conn, Unread) ->
            gen_server:reply(From, End),
            soon(S#s{ends = Ends, unread_ends = maps:remove(Conn, Unread),
                     current = {Pid, Seq, End}, reader = undefined});
        {{value, _Withdrawn}, Ends} -> hand_over(S#s{ends = Ends});
        {empty, _} -> soon(S)
    end;
hand_over(S) -> S.

%% From here on its row of `open` ends in true, and its activity may be sent: before, that
%% would overtake the login. An ended connection stays closed.
handle_cast({login, Conn, Uid, At, Timeout}, #s{fresh_logins = Fresh, sent = {C1, _}, awaiting = {C2, _}} = S) ->
    IsHanded = case S#s.current of {_, _, {_, Conn, _, _}} -> true; _ -> false end,
    HasEnded = IsHanded orelse
        lists:any(fun(M) -> is_map_key(Conn, M) end, [S#s.changes, C1, C2, S#s.unread_ends]),
    HasEnded andalso begin ets:delete(S#s.open, Conn), ets:delete(S#s.active, Conn) end,
    ets:update_element(S#s.open, Conn, {5, true}),  % unless it is logged out already
    S1 = S#s{fresh_logins = Fresh#{Conn => true}},
    {noreply, if HasEnded -> S; true -> soon(change(Conn, {login, At, Timeout}, Uid, S1)) end};
handle_cast({logout, Conn, Uid}, S) -> handle_cast({withdraw, Conn}, soon(ended(Conn, Uid, S)));
handle_cast({withdraw, Conn}, S) ->
    {noreply, S#s{unread_ends = maps:remove(Conn, S#s.unread_ends)}};
handle_cast(resume, #s{state = replaced} = S) ->
    self() ! connect,
    {noreply, set_state(away, S#s{failures = 0})};
handle_cast(resume, S) -> {noreply, S}.

change(Conn, Event, Uid, #s{order = N} = S) ->
    S#s{order = N + 1, changes = (S#s.changes)#{Conn => {N, Event, Uid}}}.

%% A login that was never sent needs no logout.
ended(Conn, Uid, #s{fresh_logins = Fresh} = S) ->
    ets:update_element(S#s.open, Conn, {5, false}),  % a row of a later login
    case maps:take(Conn, Fresh) of
        {_, Rest} -> S#s{fresh_logins = Rest, changes = maps:remove(Conn, S#s.changes)};
        error -> change(Conn, logout, Uid, S)
    end.

handle_info(connect, #s{sock = undefined} = S) ->
    case liveness_socket:connect(S#s.path) of
        {ok, Sock, Writer} ->
            {noreply, send(encode([<<"hello">>, hello(S)]), S#s{sock = Sock, writer = Writer, unread = <<>>})};
        {error, Reason} -> {noreply, lost({no_link, Reason}, S)}
    end;
handle_info({closed, Sock}, #s{sock = Sock} = S) -> {noreply, lost(ended, S)};
handle_info({written, Writer}, #s{writer = Writer} = S) ->
    {noreply, write(S#s{writing = false})};
handle_info(gather, S) -> {noreply, write(S#s{timer = undefined})};
handle_info({flush, Link}, #s{link = Link, welcome = #{<<"flush">> := Flush}} = S) ->
    erlang:send_after(max(round(Flush * 900), 10), self(), {flush, Link}),
    {noreply, write(S#s{due = true})};
handle_info({idle, Link}, #s{link = Link} = S) ->
    erlang:send_after(S#s.ping_ms div 3, self(), {idle, Link}),
    {noreply, case S#s.idle andalso not S#s.writing of
                  true -> send(encode([<<"keepalive">>, []]), S);
                  false -> S#s{idle = true}
              end};
handle_info(_, S) -> {noreply, S}.  % of a link that has ended

soon(#s{timer = undefined, state = linked} = S) ->
    S#s{timer = erlang:send_after(?GATHER_MS, self(), gather)};
soon(S) -> S.

%% --- how a link begins and ends ---------------------------------------------------------

hello(#s{hello = Hello, welcome = W} = S) ->
    Options = Hello#{<<"clock">> => [now_s(), os:system_time(nanosecond) / 1.0e9]},
    case {W, finished(S)} of
        {undefined, _} -> Options;
        {_, 0} -> maps:remove(<<"fresh">>, Options);
        {#{<<"log">> := Log}, Seq} ->
            maps:remove(<<"fresh">>, Options#{<<"after">> => Seq, <<"log">> => Log})
    end.

welcomed(W, #s{welcome = Before} = S) ->
    #{<<"log">> := Log, <<"next">> := Next} = W,
    IsOther = Before =/= undefined andalso
        (maps:get(<<"log">>, Before) =/= Log orelse Next =< S#s.newest),
    Unknown = maps:get(<<"known">>, W, true) =:= false,
    S1 = case IsOther of
        true -> S#s{newest = 0, believed = 0, ends = queue:filter(fun({_, E}) -> [{0, E}] end, S#s.ends),
                    current = case S#s.current of {P, _, E} -> {P, 0, E}; C -> C end};
        false -> S
    end,
    MustDeclare = IsOther orelse S#s.shut_out orelse
        case Before of undefined -> not maps:get(<<"fresh">>, S#s.hello); _ -> Unknown end,
    S2 = case MustDeclare of true -> declare(S1); false -> S1 end,
    Believed = case S#s.shut_out of true -> Next; false -> S2#s.believed end,
    Link = S#s.link + 1,
    self() ! {flush, Link},
    self() ! {idle, Link},
    log(info, linked, set_state(linked, S2#s{
        welcome = W, link = Link, links = S#s.links + 1, shut_out = false, idle = false,
        believed = Believed, acked = 0, link_began = now_s()})).

declare(S) ->
    ets:foldl(fun({Conn, Uid, At, Timeout, true}, #s{changes = C} = Acc) when not is_map_key(Conn, C) ->
                     change(Conn, {login, At, Timeout}, Uid, Acc);
                 (_, Acc) -> Acc
              end, S, S#s.open).

%% The link has ended: note what may be lost, and connect again after a random pause.
lost(Reason, #s{sock = Sock, sent = {C1, A1}, awaiting = {C2, A2}} = S) ->
    Sock =/= undefined andalso liveness_socket:close(Sock, S#s.writer),
    Again = maps:merge(maps:merge(C2, C1), S#s.changes),
    [ets:insert_new(S#s.active, {Conn, keepalive})
     || Conn <- maps:keys(maps:merge(A2, A1)), not maps:is_key(Conn, Again)],
    HasLasted = S#s.state =:= linked andalso now_s() - S#s.link_began >= ?MAX_BACKOFF,
    Before = case HasLasted of true -> 0; false -> S#s.failures end,
    {Kind, State, Low, High} = liveness_ends:pause(Reason, Before, S#s.links),
    State =:= replaced andalso counters:add(S#s.counts, 4, 1),
    ShutOut = S#s.shut_out orelse State =:= refused orelse State =:= replaced orelse
        (Kind =:= error andalso S#s.state =/= linked),  % its hello was refused
    S1 = log(Kind, Reason, set_state(State, S#s{
        sock = undefined, writer = undefined, changes = Again, sent = {#{}, #{}},
        awaiting = {#{}, #{}}, pinging = false, link = S#s.link + 1, shut_out = ShutOut})),
    State =/= replaced andalso
        erlang:send_after(round(1000 * (Low + rand:uniform() * (High - Low))), self(), connect),
    S1#s{failures = case Kind of error -> Before + 1; _ -> 0 end}.

set_state(State, #s{state = State} = S) -> S;
set_state(State, S) ->
    try (S#s.on_state)(State) catch C:R -> logger:error("on_state failed: ~p:~p", [C, R]) end,
    S#s{state = State}.

log(_, What, #s{logged = What} = S) -> S;
log(Level, What, #s{path = Path, hello = #{<<"name">> := Name}} = S) ->
    logger:log(Level, "~ts: link to the sidecar at ~ts: ~ts", [Name, Path, liveness_ends:text(What)]),
    S#s{logged = What}.

%% --- what is read -----------------------------------------------------------------------

read(S) ->
    case read_frame(S) of
        more -> S;
        #s{sock = undefined} = Ended -> Ended;
        Next -> read(Next)
    end.

%% Whatever the sidecar sends ends at most the link.
read_frame(#s{unread = Unread} = S) ->
    try
        case decode(Unread) of
            more when byte_size(Unread) > ?MAX_FRAME -> lost({bad_frame, too_large}, S);
            more -> more;
            {Frame, Rest} -> received(Frame, S#s{unread = Rest})
        end
    catch _:Reason -> lost({bad_frame, Reason}, S)
    end.

received([<<"welcome">>, #{<<"log">> := L, <<"next">> := N, <<"flush">> := F, <<"max_batch">> := B,
                           <<"max_frame">> := M} = W | _], S)
        when is_binary(L), is_integer(N), is_number(F), F >= 0, F < 1.0e6, is_integer(B), B > 0,
             is_integer(M) -> welcomed(W, S);
received([<<"notices">>, Records | _], S) ->
    true = lists:all(fun liveness_frames:is_record/1, Records),  % before any of them ends a connection
    soon(lists:foldl(fun record/2, S, Records));
received([<<"pong">>, N | _], #s{pings = N, pinging = true} = S) ->
    {Done, Waiters} = lists:partition(fun({Ping, _, _}) -> Ping =< N end, S#s.waiters),
    [gen_server:reply(From, ok) || {_, _, From} <- Done],
    write(S#s{pongs = N, pinging = false, awaiting = {#{}, #{}}, waiters = Waiters});
received([<<"error">>, #{<<"code">> := Code, <<"message">> := Message} = E | _], S) ->
    case Code =:= <<"replaced">> orelse maps:get(<<"fatal">>, E, true) of
        true -> lost({error, Code, Message}, S);
        false ->
            counters:add(S#s.counts, 3, 1),
            log(warning, {refused_frame, Code, Message}, S)
    end;
received([<<"bye">> | _], S) -> log(warning, bye, S);
received([<<"welcome">> | _], _) -> error(another_protocol);
received([_ | _], S) -> S.  % of a later version

record(#{<<"seq">> := Seq}, #s{newest = Newest} = S) when Seq =< Newest ->
    counters:add(S#s.counts, 2, 1), S;
record(#{<<"seq">> := Seq, <<"kind">> := Kind} = R, #s{hello = #{<<"name">> := Name}} = S) ->
    S1 = S#s{newest = Seq},
    case {Kind, R} of
        {<<"offline">>, #{<<"gateway">> := Name, <<"conn">> := Conn, <<"reason">> := Reason}}
            when Seq >= S#s.believed -> end_of(Conn, Reason, R, S1);
        {<<"moved">>, #{<<"from">> := Name, <<"from_conn">> := Conn}} ->
            end_of(Conn, <<"moved">>, R, S1);
        {<<"gap">>, _} -> declare(S1);  % a lost record may have ended a connection
        _ -> S1
    end.

%% Its logout is sent too: an activity may have crossed the record.
end_of(Conn, Reason, #{<<"seq">> := Seq} = R, S) ->
    case ets:lookup(S#s.open, Conn) of
        [{_, Uid, _, _, _}] ->
            ets:delete(S#s.open, Conn),
            ets:delete(S#s.active, Conn),
            S1 = ended(Conn, Uid, S),
            hand_over(S1#s{ends = queue:in({Seq, {Uid, Conn, Reason, R}}, S1#s.ends),
                           unread_ends = (S1#s.unread_ends)#{Conn => true}});
        _ -> S
    end.

%% Up to which seq all ends were handled.
finished(#s{current = {_, Seq, _}}) -> max(Seq - 1, 0);
finished(#s{ends = Ends, newest = Newest}) ->
    case queue:peek(Ends) of
        {value, {Seq, _}} -> max(Seq - 1, 0);
        empty -> Newest
    end.

%% --- what is written --------------------------------------------------------------------

write(#s{state = linked, writing = false, due = IsDue} = S) ->
    MustPing = S#s.requested > S#s.pongs andalso not S#s.pinging,
    {Changes, S1} = take_changes(S),
    {Activity, S2} = take_activity(IsDue orelse MustPing, S1),
    {Ack, S3} = take_ack(finished(S2), S2),
    IsUseful = IsDue andalso not S3#s.pinging andalso S3#s.sent =/= {#{}, #{}},
    {Ping, S4} = take_ping(MustPing orelse IsUseful, S3),
    Bytes = [Changes, Activity, Ack, Ping],
    case iolist_size(Bytes) of 0 -> S4; _ -> send(Bytes, S4) end;
write(S) -> S.

send(Bytes, S) ->
    S#s.writer ! {write, Bytes},
    S#s{writing = true, idle = false}.

take_ack(Seq, #s{acked = Acked} = S) when Seq > Acked -> {encode([<<"ack">>, Seq]), S#s{acked = Seq}};
take_ack(_, S) -> {[], S}.

take_ping(true, #s{pings = N} = S) ->
    {encode([<<"ping">>, N + 1]), S#s{pings = N + 1, pinging = true, awaiting = S#s.sent, sent = {#{}, #{}}}};
take_ping(false, S) -> {[], S}.

take_changes(#s{changes = Changes, sent = {C, A}} = S) ->
    Sorted = lists:sort([{N, Conn, Event, Uid} || {Conn, {N, Event, Uid}} <- maps:to_list(Changes)]),
    Bytes = [frames(Event, Phase, S) || {Event, Phase} <- liveness_frames:phases(Sorted)],
    [ets:delete(S#s.active, Conn) || {_, Conn, {login, _, _}, _} <- Sorted],  % it is activity
    {Bytes, S#s{changes = #{}, sent = {maps:merge(C, Changes), A},
                fresh_logins = maps:without(maps:keys(Changes), S#s.fresh_logins)}}.

take_activity(false, S) -> {[], S};
take_activity(true, #s{open = Open, active = Active, sent = {C, A}} = S) ->
    Taken = [{Conn, Event, Uid} || {Conn, _} <- ets:tab2list(Active), {_, Event} <- ets:take(Active, Conn),
                                   {_, Uid, _, _, true} <- ets:lookup(Open, Conn)],
    Bytes = [frames(Event, [{Conn, Uid} || {Conn, E, Uid} <- Taken, E =:= Event], S)
             || Event <- [message, keepalive]],
    Sent = maps:from_list([{Conn, Uid} || {Conn, _, Uid} <- Taken]),
    {Bytes, S#s{due = false, sent = {C, maps:merge(A, Sent)}}}.

frames(login, Whos, #s{welcome = W} = S) ->
    Now = now_s(),
    Logins = [{{Timeout, age(Conn, At, Now, S)}, {Conn, Uid, At}}
              || {Conn, Uid, At, Timeout} <- Whos],
    liveness_frames:logins(Logins, maps:get(<<"began">>, W, false) =:= true, W);
frames(Event, Whos, #s{welcome = W}) -> liveness_frames:events(Event, Whos, W).

%% The first login of a connection that opened on this link has none: it arrives in order.
age(Conn, At, Now, #s{fresh_logins = Fresh, link_began = Began}) ->
    case is_map_key(Conn, Fresh) andalso At >= Began of
        true -> 0;
        false -> max(0, floor((Now - At) * 10)) / 10
    end.

now_s() -> os:perf_counter(nanosecond) / 1.0e9.  % CLOCK_MONOTONIC, as `began` needs
