%% The frames of events, and the part of msgpack that the protocol uses: strings are
%% binaries, and nil is `nil`.
-module(liveness_frames).
-export([check/2, check/4, identity/1, is_record/1, phases/1, logins/3, events/3, encode/1, decode/1]).

-define(MAX_DEPTH, 32).
-define(IS_INT63(N), (is_integer(N) andalso N >= 0 andalso N < 16#8000000000000000)).

%% ok, or an error for a uid or conn that the sidecar would refuse.
check(_, _, Timeout, _) when Timeout =/= nil, (not is_number(Timeout) orelse Timeout < 1 orelse Timeout > 86400) ->
    error({bad_timeout, Timeout});
check(_, _, _, Age) when not is_number(Age) orelse Age < 0 -> error({bad_age, Age});
check(Uid, Conn, _, _) -> check(Uid, Conn).

check(_, Conn) when not ?IS_INT63(Conn) -> error({bad_conn, Conn});
check(Uid, _) when ?IS_INT63(Uid) -> ok;
check(Uid, _) when is_binary(Uid), byte_size(Uid) >= 1, byte_size(Uid) =< 255 ->
    case unicode:characters_to_list(Uid) of
        L when is_list(L) ->
            lists:any(fun(C) -> C < 32 orelse C =:= 127 end, L) andalso error({bad_uid, Uid}), ok;
        _ -> error({bad_uid, Uid})
    end;
check(Uid, _) -> error({bad_uid, Uid}).

%% 7 and <<"7">> are one user.
identity(Uid) when is_integer(Uid) -> integer_to_binary(Uid);
identity(Uid) -> Uid.

%% Whether a record has the keys that this client needs.
is_record(#{<<"seq">> := Seq, <<"kind">> := Kind} = R) ->
    is_integer(Seq) andalso (is_map_key(<<"uid">>, R) orelse not lists:member(Kind, [<<"offline">>, <<"moved">>]));
is_record(_) -> false.

%% Logins, and then logouts: a user with a newer connection is not offline in between. A uid is
%% in each phase of logins once at most, and its logins keep their order.
phases(Sorted) ->
    Logins = [{Conn, Uid, At, Timeout} || {_, Conn, {login, At, Timeout}, Uid} <- Sorted],
    Logouts = [{Conn, Uid} || {_, Conn, logout, Uid} <- Sorted],
    {Places, _} = lists:mapfoldl(fun({_, Uid, _, _} = Login, Next) ->
        Place = maps:get(identity(Uid), Next, 0),
        {{Place, Login}, Next#{identity(Uid) => Place + 1}}
    end, #{}, Logins),
    Grouped = lists:foldr(fun({P, Who}, Acc) ->
        maps:update_with(P, fun(L) -> [Who | L] end, [Who], Acc) end, #{}, Places),
    [{login, Whos} || {_, Whos} <- lists:sort(maps:to_list(Grouped))] ++ [{logout, Logouts}].

%% Logins of one timeout and age share a frame: [{{Timeout, Age}, {Conn, Uid, Began}}].
logins(Logins, HasBegan, Welcome) ->
    Groups = lists:foldr(fun({Key, Who}, Acc) ->
        maps:update_with(Key, fun(L) -> [Who | L] end, [Who], Acc)
    end, #{}, Logins),
    [batches(login, Group, login_options(Key), HasBegan, Welcome) || {Key, Group} <- maps:to_list(Groups)].

login_options({nil, Age}) -> #{<<"age">> => Age};
login_options({Timeout, Age}) -> #{<<"age">> => Age, <<"timeout">> => Timeout}.

events(Event, Whos, Welcome) ->
    batches(Event, [{Conn, Uid, nil} || {Conn, Uid} <- Whos], #{}, false, Welcome).

batches(_, [], _, _, _) -> [];
batches(Event, Group, Options, HasBegan, #{<<"max_batch">> := Most} = Welcome) ->
    {Now, Later} = lists:split(min(Most, length(Group)), Group),
    [split(Event, Now, Options, HasBegan, Welcome) | batches(Event, Later, Options, HasBegan, Welcome)].

%% One frame, or several if it would be too long.
split(Event, Group, Options, HasBegan, #{<<"max_frame">> := Most} = Welcome) ->
    {Conns, Uids, Began} = lists:unzip3(Group),
    More = case HasBegan of true -> Options#{<<"began">> => Began}; false -> Options end,
    Frame = iolist_to_binary(encode([atom_to_binary(Event), Uids, More#{<<"conn">> => Conns}])),
    case byte_size(Frame) > Most andalso length(Group) > 1 of
        false -> Frame;
        true ->
            {A, B} = lists:split(length(Group) div 2, Group),
            [split(Event, Half, Options, HasBegan, Welcome) || Half <- [A, B]]
    end.

encode(nil) -> <<16#c0>>;
encode(false) -> <<16#c2>>;
encode(true) -> <<16#c3>>;
encode(N) when is_integer(N), N >= 0, N < 128 -> <<N>>;
encode(N) when is_integer(N), N >= 0 -> <<16#cf, N:64>>;
encode(F) when is_float(F) -> <<16#cb, F:64/float>>;
encode(B) when is_binary(B), byte_size(B) < 32 -> <<5:3, (byte_size(B)):5, B/binary>>;
encode(B) when is_binary(B), byte_size(B) < 65536 -> <<16#da, (byte_size(B)):16, B/binary>>;
encode(L) when is_list(L), length(L) < 16 -> [<<9:4, (length(L)):4>> | [encode(V) || V <- L]];
encode(L) when is_list(L) -> [<<16#dd, (length(L)):32>> | [encode(V) || V <- L]];
encode(M) when is_map(M), map_size(M) < 16 ->
    [<<8:4, (map_size(M)):4>> | [[encode(K), encode(V)] || {K, V} <- maps:to_list(M)]].

%% {Value, Rest}, or `more` if the value is not complete; throws for broken bytes.
decode(Bytes) -> try value(Bytes, ?MAX_DEPTH) catch throw:more -> more end.

value(_, 0) -> throw(too_deep);
value(<<0:1, N:7, R/binary>>, _) -> {N, R};
value(<<8:4, N:4, R/binary>>, D) -> map(N, R, D, #{});
value(<<9:4, N:4, R/binary>>, D) -> list(N, R, D, []);
value(<<5:3, N:5, S:N/binary, R/binary>>, _) -> {S, R};
value(<<16#c0, R/binary>>, _) -> {nil, R};
value(<<16#c2, R/binary>>, _) -> {false, R};
value(<<16#c3, R/binary>>, _) -> {true, R};
value(<<B, N:8, S:N/binary, R/binary>>, _) when B =:= 16#d9; B =:= 16#c4 -> {S, R};
value(<<B, N:16, S:N/binary, R/binary>>, _) when B =:= 16#da; B =:= 16#c5 -> {S, R};
value(<<B, N:32, S:N/binary, R/binary>>, _) when B =:= 16#db; B =:= 16#c6 -> {S, R};
value(<<16#ca, F:32/float, R/binary>>, _) -> {F, R};
value(<<16#cb, F:64/float, R/binary>>, _) -> {F, R};
value(<<16#cc, N:8, R/binary>>, _) -> {N, R};
value(<<16#cd, N:16, R/binary>>, _) -> {N, R};
value(<<16#ce, N:32, R/binary>>, _) -> {N, R};
value(<<16#cf, N:64, R/binary>>, _) -> {N, R};
value(<<16#d0, N:8/signed, R/binary>>, _) -> {N, R};
value(<<16#d1, N:16/signed, R/binary>>, _) -> {N, R};
value(<<16#d2, N:32/signed, R/binary>>, _) -> {N, R};
value(<<16#d3, N:64/signed, R/binary>>, _) -> {N, R};
value(<<16#dc, N:16, R/binary>>, D) -> list(N, R, D, []);
value(<<16#dd, N:32, R/binary>>, D) -> list(N, R, D, []);
value(<<16#de, N:16, R/binary>>, D) -> map(N, R, D, #{});
value(<<16#df, N:32, R/binary>>, D) -> map(N, R, D, #{});
value(<<7:3, N:5, R/binary>>, _) -> {N - 32, R};
value(<<B, _/binary>>, _) when B >= 16#c7, B =< 16#c9; B >= 16#d4, B =< 16#d8; B =:= 16#c1 -> throw(extension);
value(<<B, R/binary>>, _) when B =:= 16#ca, byte_size(R) >= 4; B =:= 16#cb, byte_size(R) >= 8 -> throw(not_a_number);
value(_, _) -> throw(more).

list(0, R, _, Values) -> {lists:reverse(Values), R};
list(N, R, D, Values) -> {V, R1} = value(R, D - 1), list(N - 1, R1, D, [V | Values]).

map(0, R, _, Map) -> {Map, R};
map(N, R, D, Map) ->
    {K, R1} = value(R, D - 1),
    {V, R2} = value(R1, D - 1),
    map(N - 1, R2, D, Map#{K => V}).
