#!/bin/sh
# Stands for mpirun in the tests of `wgrad launch`: notes its arguments in the file `starts`, and ends as the line of
# this start in the file `ends` says. Where the file `saves` is, it writes the checkpoint run.st first.
printf '%s\n' "$*" >> starts
end=$(sed -n "$(wc -l < starts | tr -d ' ')p" ends)
if [ -e saves ]; then echo saved >> run.st; fi
if [ "$end" = wait ]; then
    trap 'exit 130' INT
    : > waiting
    while :; do sleep 0.05; done
fi
if [ "$end" = stuck ]; then
    # Its rank ends, and the process that is now in its place waits for none.
    true &
    exec sleep 600
fi
exit "$end"
