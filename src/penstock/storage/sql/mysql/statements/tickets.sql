-- The tickets of publishing transactions, and the segment at which each began (L2).
SELECT number, base FROM penstock_ticket
