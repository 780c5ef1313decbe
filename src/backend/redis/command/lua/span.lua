-- Spans several slots, and reads and writes nothing.
--
-- KEYS names of several slots
-- Reply: 0, or CROSSSLOT from a server that has the keys at several servers by slot.
return 0
