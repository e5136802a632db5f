%% The lines of the demo's users: one flat JSON object of strings and integers.
-module(gateway_json).
-export([decode/1, encode/1]).

%% [{Key, Value}], or `invalid`.
decode(Line) ->
    try
        {Pairs, Rest} = object(space(Line)),
        <<>> = space(Rest),
        Pairs
    catch error:_ -> invalid
    end.

object(<<${, R/binary>>) ->
    case space(R) of
        <<$}, Rest/binary>> -> {[], Rest};
        Rest -> pairs(Rest, [])
    end.

pairs(Bytes, Pairs) ->
    {Key, R} = string(Bytes),
    <<$:, R1/binary>> = space(R),
    {Value, R2} = value(space(R1)),
    case space(R2) of
        <<$,, R3/binary>> -> pairs(space(R3), [{Key, Value} | Pairs]);
        <<$}, R3/binary>> -> {lists:reverse([{Key, Value} | Pairs]), R3}
    end.

value(<<$", _/binary>> = Bytes) -> string(Bytes);
value(<<"true", R/binary>>) -> {true, R};
value(<<"false", R/binary>>) -> {false, R};
value(<<"null", R/binary>>) -> {nil, R};
value(Bytes) ->
    {match, [{0, N}]} = re:run(Bytes, "^-?(0|[1-9][0-9]{0,15})(?=[\\s,}])", [{capture, first}]),
    <<Digits:N/binary, R/binary>> = Bytes,
    {binary_to_integer(Digits), R}.

string(<<$", R/binary>>) -> string(R, []).

string(<<$", R/binary>>, Done) -> {<<_/binary>> = unicode:characters_to_binary(lists:reverse(Done)), R};
string(<<"\\u", H:4/binary, "\\u", L:4/binary, R/binary>>, Done) when H >= <<"D800">>, H < <<"DC00">>;
                                                                     H >= <<"d800">>, H < <<"dc00">> ->
    <<C/utf16>> = <<(binary_to_integer(H, 16)):16, (binary_to_integer(L, 16)):16>>,
    string(R, [C | Done]);
string(<<"\\u", H:4/binary, R/binary>>, Done) -> string(R, [binary_to_integer(H, 16) | Done]);
string(<<$\\, C, R/binary>>, Done) ->
    {_, Char} = lists:keyfind(C, 1, [{$", $"}, {$\\, $\\}, {$/, $/}, {$b, 8}, {$f, 12}, {$n, 10}, {$r, 13}, {$t, 9}]),
    string(R, [Char | Done]);
string(<<C/utf8, R/binary>>, Done) when C >= 32 -> string(R, [C | Done]).

space(<<C, R/binary>>) when C =:= $\s; C =:= $\t; C =:= $\n; C =:= $\r -> space(R);
space(Bytes) -> Bytes.

%% A line, all ASCII: no user can send control codes to a terminal.
encode(Pairs) ->
    Fields = [[text(Key), ": ", case Value of N when is_integer(N) -> integer_to_binary(N); _ -> text(Value) end]
              || {Key, Value} <- Pairs],
    [${, lists:join(", ", Fields), "}\n"].

text(Text) -> [$", [char(C) || C <- unicode:characters_to_list(Text)], $"].

char(C) when C =:= $"; C =:= $\\ -> [$\\, C];
char(C) when C >= 32, C < 127 -> C;
char(C) when C < 16#10000 -> io_lib:format("\\u~4.16.0b", [C]);
char(C) -> [io_lib:format("\\u~4.16.0b", [Unit]) || <<Unit:16>> <= <<C/utf16>>].
