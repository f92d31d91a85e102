"""One account's step and the way back through it, compiled: what torch's autograd makes of
`account.advance`.

Forward, amounts of money are not rounded, as in the core where an action requires its gradient.
Backward, every line has its slope, and where two slopes meet it is torch's: half to each side of a
maximum that ties, none through `relu` and `abs` at 0, all through the ends of a clamp, none through
whole shares. `g_x` is the loss's slope in x.

Only the account at the decision is kept between the two: what the way back needs, it computes
again. The compiler looks at which arrays overlap before it takes several assets at once, and gives
up where a loop has too many of them: hence loops that write one array each.
"""
